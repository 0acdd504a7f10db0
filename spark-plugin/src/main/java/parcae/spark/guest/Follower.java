package parcae.spark.guest;

import java.util.List;

/**
 * Receives the events of the application, from which an order is made.
 *
 * <p>The interface uses no types of Spark. Events come one at a time.
 */
interface Follower {
  /** A stage as a Spark job lists it: its id, number of tasks and the ids of its parents. */
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

  /** A Spark job that starts. */
  final class StartedJob {
    final int id;
    final String query;
    final String execution;
    final List<String> givenNames;
    final String plainName;
    final List<ListedStage> stages;
    private int asked;
    private int priority;
    private String user = "";
    private String pool = "";

    /**
     * Describes a job.
     *
     * @param id Spark's id of the job
     * @param query the key of its query, see `Order.queryOf`
     * @param execution its SQL execution, which may be a part of another; null outside SQL
     * @param givenNames names that the user set for planning
     * @param plainName job group, description or call site
     * @param stages the stages that the job lists
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

    /** Sets the priority that the job asks for, and the one that it gets. */
    StartedJob asking(int askedPriority, int granted) {
      asked = askedPriority;
      priority = granted;
      return this;
    }

    int asked() {
      return asked;
    }

    int priority() {
      return priority;
    }

    /** Sets the user and the pool by which accounts are kept; empty for what is not known. */
    StartedJob by(String knownUser, String accountPool) {
      user = knownUser;
      pool = accountPool;
      return this;
    }

    String user() {
      return user;
    }

    String pool() {
      return pool;
    }
  }

  /** From now on the application can run so many tasks at once. */
  void coresChanged(int cores);

  /** An SQL execution starts; `plan` is Spark's description of its physical plan. */
  void executionStarted(String execution, String plan);

  /** The scans of an SQL execution read so many bytes, as far as that is known now. */
  default void bytesKnown(String execution, double bytes) {}

  /** An SQL execution has ended. The end of a job that failed may come later. */
  void executionEnded(String execution, boolean isSuccess);

  /** A Spark job starts. */
  void jobStarted(StartedJob job);

  /** A Spark job has ended. */
  void jobEnded(int job, boolean isSuccess);

  /** An attempt to run a stage starts, with so many tasks. */
  void stageSubmitted(int stage, int attempt, int tasks);

  /** All tasks of a stage have ended. An attempt that failed does not end its stage. */
  void stageCompleted(int stage);

  /** A task of an attempt to run a stage starts. */
  void taskStarted(int stage, int attempt);

  /** A task has ended. `tookMs` is its duration; it counts only for a task that succeeded. */
  void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs);

  /**
   * A task, or a copy of one, holds cores.
   *
   * @param task Spark's id of the task
   * @param stage its stage
   * @param cores the cores that it holds, in units of those that a task takes by default
   * @param launchMs since when, by the clock of Spark's driver
   */
  default void taskHeld(long task, int stage, double cores, long launchMs) {}

  /** Such a task has given its cores back at `endMs`, however it ended. */
  default void taskReleased(long task, int stage, double cores, long launchMs, long endMs) {}

  /** The output of a task that had succeeded is lost; the same attempt runs the task again. */
  void taskLost(int stage, int attempt);
}
