package parcae.spark.guest;

import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;

/**
 * Counts the tasks of open stages that have succeeded, to find those whose end Spark dropped: a
 * stage that completes has run every task. Only one thread may use this at a time.
 */
final class TaskEnds {
  private static final int NONE = -1;

  private final Map<Integer, Stage> stages = new HashMap<>();

  private static final class Stage {
    final int job;
    final int listedTasks;
    int attempt = NONE; // the latest one that was submitted
    BitSet done = new BitSet(); // partitions that succeeded since then, in any attempt

    Stage(int job, int listedTasks) {
      this.job = job;
      this.listedTasks = listedTasks;
    }
  }

  /** A job lists a stage. */
  void listed(int job, int stage, int tasks) {
    stages.put(stage, new Stage(job, tasks));
  }

  /** The job that listed a stage; null if none is known. */
  Integer jobOf(int stage) {
    Stage found = stages.get(stage);
    return found == null ? null : found.job;
  }

  /** Forgets the stages of a job. */
  void jobEnded(int job) {
    stages.values().removeIf(stage -> stage.job == job);
  }

  /** An attempt is submitted; false if that was known. */
  boolean submitted(int stage, int attempt) {
    Stage found = stages.get(stage);
    if (found == null || attempt <= found.attempt) {
      return false;
    }
    found.attempt = attempt;
    found.done = new BitSet();
    return true;
  }

  /** The number of tasks with which the stage was listed. */
  int listedTasks(int stage) {
    return stages.get(stage).listedTasks;
  }

  /** A task has succeeded. */
  void succeeded(int stage, int partition) {
    Stage found = stages.get(stage);
    if (found != null) {
      found.done.set(partition);
    }
  }

  /** The output of a task is lost: it has to succeed again. */
  void lost(int stage, int partition) {
    Stage found = stages.get(stage);
    if (found != null) {
      found.done.clear(partition);
    }
  }

  /** A stage of so many tasks completes: how many of them did so without an event. */
  int missing(int stage, int tasks) {
    Stage found = stages.get(stage);
    return found == null ? 0 : Math.max(0, tasks - found.done.cardinality());
  }
}
