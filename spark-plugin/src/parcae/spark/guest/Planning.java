package parcae.spark.guest;

/**
 * Plans by a policy file, without a service: tells the planner what happens, and has it plan on a
 * thread of its own, soon after what happened and at the time for which the last order asks.
 */
final class Planning implements Follower {
  private static final long MS_IN_NS = 1_000_000;
  /** Ends of tasks alone are planned for at most so often. */
  private static final long PAUSE_NS = 50 * MS_IN_NS;

  private final Guest guest;
  private final Planner planner;
  private final Trace trace;
  private boolean isStopped;
  private boolean isDue; // else at `dueNs`
  private boolean hasTime;
  private long dueNs;

  Planning(Guest guest, Planner planner, Trace trace) {
    this.guest = guest;
    this.planner = planner;
    this.trace = trace;
  }

  /** Starts the thread. */
  void start() {
    Thread thread = new Thread(
        () -> guest.attempt("planning", this::planOnAndOn), "parcae-planner");
    thread.setDaemon(true);
    thread.start();
  }

  /** Ends the thread. */
  synchronized void stop() {
    isStopped = true;
    notifyAll();
  }

  private void planOnAndOn() throws InterruptedException {
    while (awaitDue()) {
      long startNs = System.nanoTime();
      synchronized (this) {
        isDue = false;
        hasTime = false;
        Order order = planner.plan();
        if (order.wakeMs() != Order.NOT_YET) {
          dueBy(System.nanoTime() + (order.wakeMs() - planner.clockMs()) * MS_IN_NS);
        }
        guest.setOrder(order);
        trace.write(order, planner::labelOf);
      }
      long tookMs = (System.nanoTime() - startNs) / MS_IN_NS;
      Thread.sleep(1 + tookMs); // events have half of the time at least
    }
  }

  /** Waits until it is time to plan; false where it never will be. */
  private synchronized boolean awaitDue() throws InterruptedException {
    while (!isStopped && guest.isWorking()) {
      long leftNs = hasTime ? dueNs - System.nanoTime() : PAUSE_NS * 20;
      if (isDue || (hasTime && leftNs <= 0)) {
        return true;
      }
      wait(1 + leftNs / MS_IN_NS);
    }
    return false;
  }

  private void dueNow() {
    isDue = true;
    notifyAll();
  }

  private void dueBy(long timeNs) {
    if (!hasTime || timeNs - dueNs < 0) {
      hasTime = true;
      dueNs = timeNs;
      notifyAll();
    }
  }

  @Override
  public synchronized void coresChanged(int cores) {
    planner.coresChanged(cores);
    dueNow();
  }

  @Override
  public synchronized void executionStarted(String execution, String plan) {
    planner.executionStarted(execution, plan);
  }

  @Override
  public synchronized void executionEnded(String execution) {
    planner.executionEnded(execution);
    dueNow();
  }

  @Override
  public synchronized void jobStarted(StartedJob job) {
    planner.jobStarted(job);
    dueNow();
  }

  @Override
  public synchronized void jobEnded(int job, boolean isSuccess) {
    planner.jobEnded(job, isSuccess);
    dueNow();
  }

  @Override
  public synchronized void stageSubmitted(int stage, int attempt, int tasks) {
    planner.stageSubmitted(stage, attempt, tasks);
    dueNow();
  }

  @Override
  public synchronized void stageCompleted(int stage) {
    planner.stageCompleted(stage);
    dueNow();
  }

  @Override
  public synchronized void taskStarted(int stage, int attempt) {
    planner.taskStarted(stage, attempt);
    dueBy(System.nanoTime() + PAUSE_NS);
  }

  @Override
  public synchronized void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs) {
    planner.taskEnded(stage, attempt, isSuccess, tookMs);
    dueBy(System.nanoTime() + PAUSE_NS);
  }
}
