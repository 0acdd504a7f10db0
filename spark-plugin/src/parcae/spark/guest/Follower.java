package parcae.spark.guest;

import java.util.List;

/**
 * Follows what happens in the application, event by event, and sees to it that an order comes of
 * it. No types of Spark's; events come one at a time.
 */
interface Follower {
  /** A stage as a Spark job lists it. */
  final class ListedStage {
    final int id;
    final int tasks;
    final List<Integer> parents;

    ListedStage(int id, int tasks, List<Integer> parents) {
      this.id = id;
      this.tasks = tasks;
      this.parents = parents;
    }
  }

  /** A Spark job as it starts; `execution` is null outside SQL. */
  final class StartedJob {
    final int id;
    final String query;
    final String execution;
    final List<String> givenNames;
    final String plainName;
    final List<ListedStage> stages;

    /**
     * What is known of a job.
     *
     * @param query see `Order.queryOf`
     * @param execution its SQL execution, which may be a part of another
     * @param givenNames names that the user set for planning
     * @param plainName job group, description or call site
     */
    StartedJob(
        int id,
        String query,
        String execution,
        List<String> givenNames,
        String plainName,
        List<ListedStage> stages) {
      this.id = id;
      this.query = query;
      this.execution = execution;
      this.givenNames = givenNames;
      this.plainName = plainName;
      this.stages = stages;
    }
  }

  /** The application can run so many tasks at once. */
  void coresChanged(int cores);

  /** An SQL execution starts; `plan` is Spark's description of its physical plan. */
  void executionStarted(String execution, String plan);

  void executionEnded(String execution);

  void jobStarted(StartedJob job);

  void jobEnded(int job, boolean isSuccess);

  /** An attempt to run a stage starts, with so many tasks. */
  void stageSubmitted(int stage, int attempt, int tasks);

  void stageCompleted(int stage);

  void taskStarted(int stage, int attempt);

  /** A task ended; one that succeeded took `tookMs`. */
  void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs);
}
