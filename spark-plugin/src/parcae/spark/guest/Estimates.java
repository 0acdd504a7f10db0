package parcae.spark.guest;

/**
 * Estimates of a query's remaining work, for all policies of the plugin. They are
 * `parcae.cluster.kernels.tables` in Java.
 */
final class Estimates {
  /** The prior, that the estimated durations are right, counts as so many finished tasks. */
  static final double PRIOR_TASKS = 3;
  /** Remaining work is estimated as at least this share of the work that is done. */
  static final double LEAST_SHARE = 0.05;

  private Estimates() {}

  /** The factor on the estimated durations, from finished tasks; 1 before any has finished. */
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

  /** The estimated work of the tasks that have not started, in ms of one core. */
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
