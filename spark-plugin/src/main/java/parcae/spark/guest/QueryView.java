package parcae.spark.guest;

/** An open query as a person may see it: in metrics and on the page. */
final class QueryView {
  /** See `Order.queryOf`. */
  final String key;
  final Trace.Label label;
  /** Since its first job began. */
  final long ageMs;
  final int running;
  final int toStart;
  /** For how long it has had a task to start and none that ran. */
  final long waitedMs;
  final double doneMs;
  final double leftMs;
  /** What its user has taken beyond its share; NaN while no other user has a query. */
  final double overdraftMs;

  QueryView(String key, Query query, long nowMs) {
    this.key = key;
    label = query.label();
    ageMs = nowMs - query.arrivalMs;
    int nowRunning = 0;
    int startable = 0;
    double executedMs = 0;
    for (StageRow row : query.rows()) {
      nowRunning += row.isOpen ? row.running() : 0;
      startable += row.isPending() ? row.tasks - row.started : 0;
      executedMs += row.executedMs;
    }
    running = nowRunning;
    toStart = startable;
    waitedMs = startable > 0 && nowRunning == 0 ? nowMs - query.servedMs : 0;
    doneMs = executedMs;
    leftMs = Estimates.remainingMs(query);
    boolean isShared = query.account != null && query.accounts.numUsers() > 1;
    overdraftMs = isShared ? query.account.overdraftMs() : Double.NaN;
  }
}
