package parcae.spark.guest;

import java.util.List;

/**
 * Plans by a policy file, without a service.
 *
 * <p>It passes events to the planner and makes it plan on a separate thread: soon after an event,
 * and at the time that the last order asks for.
 */
final class Planning implements Follower {
  private static final long MS_IN_NS = 1_000_000;
  /** The shortest time between two plans if nothing but task starts and ends happens. */
  private static final long PAUSE_NS = 50 * MS_IN_NS;
  /** How often the planner looks for tasks whose end Spark did not tell. */
  private static final long CHECK_NS = 1_000 * MS_IN_NS;

  private final Guest guest;
  private final Planner planner;
  private final Trace trace;
  private final Metrics metrics;
  private boolean isStopped;
  private boolean isDue; // plan now
  private boolean hasTime; // plan at `dueNs`
  private long dueNs;
  private long checkedNs = System.nanoTime();

  Planning(Guest guest, Planner planner, Trace trace, Metrics metrics) {
    this.guest = guest;
    this.planner = planner;
    this.trace = trace;
    this.metrics = metrics;
  }

  /** Starts the thread. */
  void start() {
    Thread thread = new Thread(
        () -> guest.attempt("planning", this::planRepeatedly), "parcae-planner");
    thread.setDaemon(true);
    thread.start();
  }

  /** Ends the thread. */
  synchronized void stop() {
    isStopped = true;
    notifyAll();
  }

  private void planRepeatedly() throws InterruptedException {
    while (awaitDue()) {
      long startNs;
      synchronized (this) {
        startNs = System.nanoTime();
        isDue = false;
        hasTime = false;
        if (startNs - checkedNs > CHECK_NS) {
          checkedNs = startNs;
          planner.keepTasks(guest::isRunning);
        }
        Order order = planner.plan();
        metrics.planned(System.nanoTime() - startNs);
        if (order.wakeMs() != Order.NOT_YET) {
          dueBy(System.nanoTime() + (order.wakeMs() - planner.clockMs()) * MS_IN_NS);
        }
        guest.setOrder(order);
        if (guest.isShown() && guest.plannedOrder() == order) { // else the service orders
          trace.write(order, planner::labelOf);
        }
      }
      long tookMs = (System.nanoTime() - startNs) / MS_IN_NS;
      Thread.sleep(1 + tookMs); // leaves at least half of the time to events
    }
  }

  /** Waits until it is time to plan; false when the thread must end. */
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

  /** The open queries, in order of arrival. */
  synchronized List<QueryView> openQueries() {
    return planner.openQueries();
  }

  /** Makes the thread plan now. */
  synchronized void dueNow() {
    isDue = true;
    notifyAll();
  }

  /** Makes the thread plan at this time or sooner. */
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
    dueNow(); // its first tasks are offered cores before its first job is known here
  }

  @Override
  public synchronized void bytesKnown(String execution, double bytes) {
    planner.bytesKnown(execution, bytes);
    dueNow();
  }

  @Override
  public synchronized void executionEnded(String execution, boolean isSuccess) {
    planner.executionEnded(execution, isSuccess);
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

  @Override
  public synchronized void taskHeld(long task, int stage, double cores, long launchMs) {
    planner.taskHeld(task, stage, cores, launchMs);
  }

  @Override
  public synchronized void taskReleased(
      long task, int stage, double cores, long launchMs, long endMs) {
    planner.taskReleased(task, stage, cores, launchMs, endMs);
  }

  @Override
  public synchronized void taskLost(int stage, int attempt) {
    planner.taskLost(stage, attempt);
    dueBy(System.nanoTime() + PAUSE_NS);
  }
}
