package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.IntPredicate;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.Iterator;

/**
 * Keeps the number of executors that the service grants, where applications share a cluster.
 *
 * <p>It asks the cluster manager for as many executors as are granted and returns surplus ones,
 * idle executors first; a busy one takes no more tasks and goes when its last one ends. While the
 * service is away, or once the plugin is off, it removes none and requests the fallback number. It
 * runs on a separate thread, since the cluster manager may answer slowly.
 * It uses the same interface as Spark's dynamic allocation and so works with the same masters.
 */
final class ExecutorShare implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(ExecutorShare.class);
  private static final String DYNAMIC = "spark.dynamicAllocation.enabled";
  private static final long TICK_MS = 500;
  /** How long the service must be away before the fallback number of executors is requested. */
  private static final long GRACE_MS = 3_000;
  /** After this time an executor that was killed and is still there is killed again. */
  private static final long AGAIN_MS = 10_000;
  /** How often executors are looked for whose end event Spark dropped. */
  private static final long CHECK_MS = 10_000;
  /** Time between two requests if the cluster manager does not answer, or refuses. */
  private static final long PAUSE_MS = 5_000;
  private static final int NOT_GRANTED = -1;

  private final Guest guest;
  private final SchedulerBackend backend;
  private final IntPredicate request;
  private final int fallback; // executors to request while no service grants any
  private final String refusal;
  /** Number of running tasks by executor, in the order in which the executors came. */
  private final Map<String, Integer> tasksOn = new LinkedHashMap<>();
  /** When the executor was asked to leave, by executor. */
  private final Map<String, Long> leavingNs = new HashMap<>();
  /** Executors that are to go, which take no more tasks; never changed, but replaced. */
  private volatile Set<String> draining = Set.of();
  private final Set<Integer> jobs = new HashSet<>(); // open Spark jobs
  private boolean isStopping;
  private boolean hasStarted;
  private boolean isRefused;
  private boolean hasChanged;
  private int granted = NOT_GRANTED;
  private long awayNs = System.nanoTime();
  private boolean isAway = true;
  private int requested = NOT_GRANTED; // the last number sent to the cluster manager
  private int logged = NOT_GRANTED;
  private boolean isUnanswered; // the last request failed
  private long checkedNs = System.nanoTime(); // when lost executors were looked for

  /**
   * Creates the share of an application.
   *
   * @param guest the plugin, which handles errors
   * @param conf Spark's settings
   * @param backend what knows the executors, and removes them
   * @param request asks the cluster manager for a number of executors; whether it accepts
   * @throws PolicyException if a setting is wrong
   */
  ExecutorShare(Guest guest, SparkConf conf, SchedulerBackend backend, IntPredicate request)
      throws PolicyException {
    this.guest = guest;
    this.backend = backend;
    this.request = request;
    fallback = fallback(conf);
    refusal = refusal(conf, backend);
    if (fallback > 0 && refusal != null) {
      throw new PolicyException(LinkSettings.FALLBACK + " is set, but " + refusal);
    }
  }

  private static int fallback(SparkConf conf) throws PolicyException {
    String text = conf.get(LinkSettings.FALLBACK, "0");
    if (!text.matches("[0-9]{1,6}")) {
      throw new PolicyException(
          LinkSettings.FALLBACK + " is \"" + text + "\"; set it to a number of executors");
    }
    return Integer.parseInt(text);
  }

  /** Why this application cannot change its executors; null if it can. */
  private static String refusal(SparkConf conf, SchedulerBackend backend) {
    if (conf.getBoolean(DYNAMIC, false)) {
      return DYNAMIC + " is set, and only one side can allocate executors; remove it";
    }
    if (!(backend instanceof ExecutorAllocationClient)) {
      return "the master " + conf.get("spark.master", "") + " cannot add or remove executors";
    }
    return null;
  }

  /** The listener that counts executors, their tasks and open jobs. */
  SparkListener listener() {
    return new ExecutorListener();
  }

  /**
   * Adds the executors that came before the listener. Spark may wait for a share of them before it
   * lets plugins register their metrics. None of them runs a task yet.
   */
  synchronized void addPresent() {
    if (refusal != null) {
      return;
    }
    executorsOf(backend).forEach(this::added);
  }

  /** The executors that a backend has, in its order; null if it cannot say. */
  static Set<String> executorsOf(SchedulerBackend backend) {
    if (!(backend instanceof ExecutorAllocationClient)) {
      return null;
    }
    Set<String> present = new LinkedHashSet<>();
    ExecutorAllocationClient client = (ExecutorAllocationClient) backend;
    for (Iterator<?> all = client.getExecutorIds().iterator(); all.hasNext(); ) {
      present.add(String.valueOf(all.next()));
    }
    return present;
  }

  /** Drops the executors that Spark no longer has. It has one before the event of its start. */
  synchronized void dropLost() {
    checkedNs = System.nanoTime();
    tasksOn.keySet().retainAll(executorsOf(backend));
    leavingNs.keySet().retainAll(tasksOn.keySet());
  }

  /** Whether an executor is to go, so that no task may start there. */
  boolean isDraining(String executor) {
    return draining.contains(executor);
  }

  /** The service grants so many executors; -1 if it leaves their number to the application. */
  synchronized void granted(int executors) {
    // Where the service shares out executors no longer, its last grant does not hold.
    isAway = executors == NOT_GRANTED && granted != NOT_GRANTED;
    if (executors == NOT_GRANTED) {
      return;
    }
    if (refusal != null) {
      if (!isRefused) {
        isRefused = true;
        LOG.error("parcae: the service shares out executors, which is ignored: {}", refusal);
      }
      return;
    }
    granted = executors;
    changed();
  }

  /** The service is away: from now on the fallback may apply. */
  synchronized void left() {
    isAway = true;
    awayNs = System.nanoTime();
  }

  synchronized void stop() {
    isStopping = true;
    notifyAll();
  }

  /** Wakes the thread up; starts it when it is needed for the first time. */
  private void changed() {
    hasChanged = true;
    notifyAll();
    if (!hasStarted && refusal == null && (granted != NOT_GRANTED || fallback > 0)) {
      hasStarted = true;
      Thread thread = new Thread(
          () -> guest.insist("sharing executors", this::run), "parcae-executors");
      thread.setDaemon(true);
      thread.start();
    }
  }

  @Override
  public void run() {
    while (awaitChange()) {
      try {
        adjust();
        if (isUnanswered) {
          isUnanswered = false;
          LOG.info("parcae: requesting executors works again");
        }
      } catch (Exception error) {
        // The cluster manager did not answer. Spark then throws checked exceptions, which Scala
        // does not declare.
        if (error instanceof InterruptedException) {
          return;
        }
        if (!isUnanswered) {
          isUnanswered = true;
          LOG.warn(
              "parcae: requesting executors failed; the plugin tries again every {} s ({})",
              PAUSE_MS / 1_000,
              error.toString());
        }
        pause();
      }
    }
  }

  /** Waits before the next request; earlier ends only when the thread must end. */
  private synchronized void pause() {
    requested = NOT_GRANTED;
    long endNs = System.nanoTime() + PAUSE_MS * 1_000_000;
    try {
      for (long leftMs = PAUSE_MS; leftMs > 0 && !isStopping; ) {
        wait(leftMs);
        leftMs = (endNs - System.nanoTime()) / 1_000_000;
      }
    } catch (InterruptedException error) {
      isStopping = true;
    }
  }

  /** Waits for a change or the next tick; false when the thread must end. */
  private synchronized boolean awaitChange() {
    try {
      if (!hasChanged && !isStopping) {
        wait(TICK_MS);
      }
    } catch (InterruptedException error) {
      return false;
    }
    hasChanged = false;
    return !isStopping;
  }

  /** Requests the target number of executors and returns surplus ones. */
  private void adjust() {
    if (System.nanoTime() - checkedNs > CHECK_MS * 1_000_000) {
      dropLost();
    }
    int target = target();
    if (target == NOT_GRANTED) {
      draining = Set.of();
      return;
    }
    if (needsRequest(target)) {
      if (!request.test(target)) {
        throw new IllegalStateException("the cluster manager did not accept the request");
      }
    }
    List<String> idle = choose(target);
    if (!idle.isEmpty()) {
      // Without force, Spark kills none that runs a task.
      client().killExecutors(scalaList(idle), false, false, false);
    }
  }

  private ExecutorAllocationClient client() {
    return (ExecutorAllocationClient) backend;
  }

  /** How many executors there should be; NOT_GRANTED if that is left to Spark. */
  private synchronized int target() {
    boolean isGranting = !isAway && guest.isWorking();
    if (isGranting) {
      return granted;
    }
    int held = tasksOn.size() - leavingNs.size();
    boolean isPast = System.nanoTime() - awayNs > GRACE_MS * 1_000_000;
    // Spark alone would never ask for more than the last grant, which may be 0.
    int least = granted == NOT_GRANTED ? fallback : Math.max(1, fallback);
    if (least > held && isPast && !jobs.isEmpty()) {
      return least;
    }
    return granted == NOT_GRANTED ? NOT_GRANTED : Math.max(held, granted);
  }

  /**
   * Whether the cluster manager must be sent this target.
   *
   * <p>The cluster manager may lose a smaller number that was requested before an executor came.
   * For this reason `requested` is reset whenever an executor comes, and the number is sent again.
   */
  private synchronized boolean needsRequest(int target) {
    if (target != logged) {
      LOG.info("parcae: {} executors wanted, {} here", target, tasksOn.size() - leavingNs.size());
      logged = target;
    }
    boolean isNew = target != requested;
    requested = target;
    return isNew;
  }

  /** Chooses the executors that are to go; returns those of them that run no task. */
  private synchronized List<String> choose(int target) {
    long now = System.nanoTime();
    leavingNs.keySet().retainAll(tasksOn.keySet());
    leavingNs.values().removeIf(sinceNs -> now - sinceNs > AGAIN_MS * 1_000_000);
    int surplus = Math.max(0, tasksOn.size() - leavingNs.size() - target);
    List<String> staying = new ArrayList<>(tasksOn.keySet());
    staying.removeAll(leavingNs.keySet());
    // Stable: those that were to go before, then the idlest, of equal ones the oldest.
    staying.sort(Comparator.<String, Boolean>comparing(each -> !draining.contains(each))
        .thenComparing(tasksOn::get));
    Set<String> going = new HashSet<>(staying.subList(0, Math.min(surplus, staying.size())));
    List<String> idle = new ArrayList<>(going);
    idle.removeIf(executor -> tasksOn.get(executor) > 0);
    idle.forEach(executor -> leavingNs.put(executor, now));
    going.addAll(leavingNs.keySet());
    boolean mayGrow = !going.containsAll(draining);
    draining = Set.copyOf(going);
    if (mayGrow) {
      guest.offerAgain();
    }
    return idle;
  }

  private static scala.collection.immutable.List<String> scalaList(List<String> texts) {
    scala.collection.immutable.List<String> list =
        scala.collection.immutable.List$.MODULE$.empty();
    for (String text : texts) {
      list = list.$colon$colon(text);
    }
    return list;
  }

  private synchronized void added(String executor) {
    tasksOn.putIfAbsent(executor, 0);
    requested = NOT_GRANTED;
    changed();
  }

  private synchronized void removed(String executor) {
    tasksOn.remove(executor);
    leavingNs.remove(executor);
    changed();
  }

  private synchronized void addTasks(String executor, int more) {
    Integer now = tasksOn.computeIfPresent(executor, (key, count) -> Math.max(0, count + more));
    if (now != null && now == 0 && draining.contains(executor)) {
      changed();
    }
  }

  private synchronized void setJob(int id, boolean isOpen) {
    if (isOpen) {
      jobs.add(id);
    } else {
      jobs.remove(id);
    }
    changed();
  }

  /** Goes on when the plugin is off: the counts say when executors must be requested. */
  private final class ExecutorListener extends SparkListener {
    @Override
    public void onExecutorAdded(SparkListenerExecutorAdded event) {
      guest.insist("noting an executor", () -> added(event.executorId()));
    }

    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
      guest.insist("noting the end of an executor", () -> removed(event.executorId()));
    }

    @Override
    public void onTaskStart(SparkListenerTaskStart event) {
      guest.insist("noting a task", () -> addTasks(event.taskInfo().executorId(), 1));
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
      guest.insist("noting a task's end", () -> addTasks(event.taskInfo().executorId(), -1));
    }

    @Override
    public void onJobStart(SparkListenerJobStart event) {
      guest.insist("noting a job", () -> setJob(event.jobId(), true));
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
      guest.insist("noting a job's end", () -> setJob(event.jobId(), false));
    }
  }
}
