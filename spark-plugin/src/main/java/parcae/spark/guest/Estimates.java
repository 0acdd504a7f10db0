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
    double leftMs =
        query.priorMs > 0 ? leftOfPriorMs(query, executedMs) : unstartedMs * correction(query);
    return Math.max(leftMs, LEAST_SHARE * executedMs);
  }

  /**
   * What is left of a work that only the query's bytes foretell. Its stages come to light one by
   * one, so their tasks say only what is left at least, and only by tasks that have finished.
   */
  private static double leftOfPriorMs(Query query, double executedMs) {
    int finished = 0;
    int running = 0;
    int unstarted = 0;
    for (StageRow row : query.rows()) {
      finished += row.finished;
      running += row.running();
      unstarted += row.tasks - row.started;
    }
    double taskMs = finished == 0 ? 0 : executedMs / finished;
    return Math.max(query.priorMs - executedMs - running * taskMs, unstarted * taskMs);
  }
}
