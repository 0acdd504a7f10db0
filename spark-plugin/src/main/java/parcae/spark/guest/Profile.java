package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;

/** The estimate of a recurring query: its stages, in the order in which Spark submits them. */
final class Profile {
  final List<Stage> stages;
  final double workMs; // of all tasks together
  final double taskMs; // mean duration of a task
  final double bytes; // that the query reads then; 0: not known

  /** A stage: number of tasks, mean duration of a task, indices of the stages that it waits for. */
  static final class Stage {
    final int tasks;
    final double taskMs;
    final List<Integer> parents;

    Stage(int tasks, double taskMs, List<Integer> parents) {
      this.tasks = tasks;
      this.taskMs = taskMs;
      this.parents = parents;
    }
  }

  Profile(List<Stage> stages) {
    this(stages, 0);
  }

  Profile(List<Stage> stages, double bytes) {
    this.bytes = bytes;
    this.stages = new ArrayList<>(stages);
    double work = 0;
    long tasks = 0;
    for (Stage stage : stages) {
      work += stage.tasks * stage.taskMs;
      tasks += stage.tasks;
    }
    workMs = work;
    taskMs = tasks == 0 ? 0 : work / tasks;
  }

  /** The profile for a query that reads other bytes; 0: not known. */
  Profile at(double otherBytes) {
    double ratio = Learned.ratio(otherBytes, bytes);
    return ratio == 1 ? this : scaledTo(workMs * ratio);
  }

  /** The same stages with all durations scaled, so that their total work is as given. */
  Profile scaledTo(double newWorkMs) {
    double factor = workMs > 0 ? newWorkMs / workMs : 1;
    List<Stage> scaled = new ArrayList<>(stages.size());
    for (Stage stage : stages) {
      scaled.add(new Stage(stage.tasks, stage.taskMs * factor, stage.parents));
    }
    return new Profile(scaled);
  }
}
