package parcae.spark.guest;

/**
 * What is left of a query, as far as it can be known: `parcae.cluster.kernels.estimates` in Java,
 * for all that plans here.
 */
final class Estimates {
  /** The prior belief in the foretold durations counts as so many finished tasks. */
  static final double PRIOR_TASKS = 3;
  /** At least this share of what was done is thought to be left. */
  static final double LEAST_SHARE = 0.05;

  private Estimates() {}

  /** Factor on the foretold durations that finished tasks suggest: 1 before any has finished. */
  static double correction(Query query) {
    int finished = 0;
    double executedMs = 0;
    double expectedMs = 0;
    for (StageRow row : query.rows()) {
      finished += row.finished;
      executedMs += row.executedMs;
      expectedMs += row.finished * row.taskMs;
    }
    if (finished == 0 || expectedMs <= 0) {
      return 1;
    }
    return (finished * executedMs / expectedMs + PRIOR_TASKS) / (finished + PRIOR_TASKS);
  }

  /** Work of the tasks that have not started, in ms of one core, as it is thought of now. */
  static double remainingMs(Query query) {
    double unstartedMs = 0;
    double executedMs = 0;
    for (StageRow row : query.rows()) {
      unstartedMs += (row.tasks - row.started) * row.taskMs;
      executedMs += row.executedMs;
    }
    return Math.max(unstartedMs * correction(query), LEAST_SHARE * executedMs);
  }
}
