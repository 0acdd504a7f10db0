package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.ExecutorDecommissionInfo;
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
import scala.Option;
import scala.Tuple2;

/**
 * Where applications share a cluster: asks the cluster manager for as many executors as the service
 * grants, and gives back those above, idle ones first.
 *
 * <p>On a thread of its own, since the cluster manager takes its time to answer. It works by what
 * Spark's own dynamic allocation works by, and so wherever that does.
 */
final class ExecutorShare implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(ExecutorShare.class);
  private static final String DYNAMIC = "spark.dynamicAllocation.enabled";
  private static final long TICK_MS = 500;
  private static final long GRACE_MS = 3_000; // without the service, before more are asked for
  private static final long BUSY_MS = 3_000; // so long an idle one is waited for
  private static final long AGAIN_MS = 10_000; // a kill that had no effect is tried again
  private static final int NOT_GRANTED = -1;

  private final Guest guest;
  private final SparkContext context;
  private final int fallback;
  private final boolean canDecommission;
  private final String refusal;
  private final Map<String, Integer> tasksOn = new LinkedHashMap<>(); // by executor
  private final Map<String, Long> leavingNs = new HashMap<>();
  private final Set<Integer> jobs = new HashSet<>();
  private boolean isStopping;
  private boolean hasStarted;
  private boolean isRefused;
  private boolean hasChanged;
  private int granted = NOT_GRANTED;
  private long awayNs = System.nanoTime();
  private boolean isAway = true;
  private int told = NOT_GRANTED;
  private int logged = NOT_GRANTED;
  private long abundantNs;

  ExecutorShare(Guest guest, SparkContext context) throws PolicyException {
    this.guest = guest;
    this.context = context;
    SparkConf conf = context.conf();
    fallback = fallback(conf);
    canDecommission = conf.getBoolean("spark.decommission.enabled", false);
    refusal = refusal(conf, context.schedulerBackend());
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

  private static String refusal(SparkConf conf, SchedulerBackend backend) {
    if (conf.getBoolean(DYNAMIC, false)) {
      return DYNAMIC + " is set, and two cannot allocate executors; leave it out";
    }
    if (!(backend instanceof ExecutorAllocationClient)) {
      return "the master " + conf.get("spark.master", "") + " has no executors that come and go";
    }
    return null;
  }

  /** Follows executors and their tasks. */
  SparkListener listener() {
    return new Following();
  }

  /** The service grants so many executors; -1 where it leaves them to the application. */
  synchronized void granted(int executors) {
    isAway = false;
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

  /** The service is away. */
  synchronized void left() {
    isAway = true;
    awayNs = System.nanoTime();
  }

  synchronized void stop() {
    isStopping = true;
    notifyAll();
  }

  private void changed() {
    hasChanged = true;
    notifyAll();
    if (!hasStarted && refusal == null && (granted != NOT_GRANTED || fallback > 0)) {
      hasStarted = true;
      Thread thread = new Thread(
          () -> guest.attempt("sharing executors", this::run), "parcae-executors");
      thread.setDaemon(true);
      thread.start();
    }
  }

  @Override
  public void run() {
    while (awaitChange()) {
      try {
        keep();
      } catch (RuntimeException error) { // the cluster manager did not answer
        LOG.warn("parcae: asking for executors failed; it is tried again ({})", error.toString());
        synchronized (this) {
          told = NOT_GRANTED;
        }
      }
    }
  }

  private synchronized boolean awaitChange() {
    try {
      if (!hasChanged && !isStopping) {
        wait(TICK_MS);
      }
    } catch (InterruptedException error) {
      return false;
    }
    hasChanged = false;
    return !isStopping && guest.isWorking();
  }

  private void keep() {
    int target = target();
    if (target == NOT_GRANTED) {
      return;
    }
    if (needsTelling(target)) {
      boolean isTaken = context.requestTotalExecutors(
          target, 0, scala.collection.immutable.Map$.MODULE$.empty());
      if (!isTaken) {
        throw new IllegalStateException("the cluster manager did not take the request");
      }
    }
    List<String> idle = new ArrayList<>();
    List<String> busy = new ArrayList<>();
    choose(target, idle, busy);
    if (!idle.isEmpty()) {
      client().killExecutors(scalaList(idle), false, false, false);
    }
    if (!busy.isEmpty()) {
      giveUp(busy);
    }
  }

  private ExecutorAllocationClient client() {
    return (ExecutorAllocationClient) context.schedulerBackend();
  }

  /** How many executors there should be. */
  private synchronized int target() {
    if (!isAway) {
      return granted;
    }
    int held = tasksOn.size() - leavingNs.size();
    boolean isPast = System.nanoTime() - awayNs > GRACE_MS * 1_000_000;
    if (fallback > held && isPast && !jobs.isEmpty()) {
      return fallback;
    }
    return granted == NOT_GRANTED ? NOT_GRANTED : Math.max(held, granted);
  }

  /** A smaller number that was told before an executor came may be lost: then it is told again. */
  private synchronized boolean needsTelling(int target) {
    if (target != logged) {
      LOG.info("parcae: {} executors wanted, {} here", target, tasksOn.size() - leavingNs.size());
      logged = target;
    }
    boolean isNews = target != told;
    told = target;
    return isNews;
  }

  /** Which executors are to go: idle ones, and busy ones after a while without idle ones. */
  private synchronized void choose(int target, List<String> idle, List<String> busy) {
    long now = System.nanoTime();
    leavingNs.keySet().retainAll(tasksOn.keySet());
    leavingNs.values().removeIf(since -> now - since > AGAIN_MS * 1_000_000);
    int surplus = tasksOn.size() - leavingNs.size() - target;
    List<String> staying = new ArrayList<>(tasksOn.keySet());
    staying.removeAll(leavingNs.keySet());
    staying.sort(Comparator.comparingInt(tasksOn::get)); // stable: older ones first
    if (surplus <= 0) {
      abundantNs = 0;
      return;
    }
    abundantNs = abundantNs == 0 ? now : abundantNs;
    boolean isPatient = !canDecommission && now - abundantNs < BUSY_MS * 1_000_000;
    for (String executor : staying.subList(0, surplus)) {
      boolean isIdle = tasksOn.get(executor) == 0;
      if (isIdle || !isPatient) {
        (isIdle ? idle : busy).add(executor);
        leavingNs.put(executor, now);
      }
    }
  }

  /** Lets them end their tasks where Spark can; else their tasks run once more elsewhere. */
  @SuppressWarnings({"unchecked", "rawtypes"})
  private void giveUp(List<String> executors) {
    if (!canDecommission) {
      client().killExecutors(scalaList(executors), false, false, true);
      return;
    }
    Tuple2[] all = new Tuple2[executors.size()];
    for (int i = 0; i < all.length; i++) {
      ExecutorDecommissionInfo info =
          new ExecutorDecommissionInfo("another application needs it", Option.empty());
      all[i] = new Tuple2<>(executors.get(i), info);
    }
    client().decommissionExecutors(all, false, false);
  }

  private static scala.collection.immutable.List<String> scalaList(List<String> texts) {
    scala.collection.immutable.List<String> list =
        scala.collection.immutable.List$.MODULE$.empty();
    for (String text : texts) {
      list = list.$colon$colon(text);
    }
    return list;
  }

  private synchronized void came(String executor) {
    tasksOn.putIfAbsent(executor, 0);
    told = NOT_GRANTED;
    changed();
  }

  private synchronized void went(String executor) {
    tasksOn.remove(executor);
    leavingNs.remove(executor);
    changed();
  }

  private synchronized void tasks(String executor, int more) {
    Integer now = tasksOn.computeIfPresent(executor, (key, count) -> Math.max(0, count + more));
    if (now != null && now == 0 && abundantNs != 0) {
      changed();
    }
  }

  private synchronized void job(int id, boolean isOpen) {
    if (isOpen) {
      jobs.add(id);
    } else {
      jobs.remove(id);
    }
    changed();
  }

  private final class Following extends SparkListener {
    @Override
    public void onExecutorAdded(SparkListenerExecutorAdded event) {
      guest.attempt("noting an executor", () -> came(event.executorId()));
    }

    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
      guest.attempt("noting the end of an executor", () -> went(event.executorId()));
    }

    @Override
    public void onTaskStart(SparkListenerTaskStart event) {
      guest.attempt("noting a task", () -> tasks(event.taskInfo().executorId(), 1));
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
      guest.attempt("noting a task's end", () -> tasks(event.taskInfo().executorId(), -1));
    }

    @Override
    public void onJobStart(SparkListenerJobStart event) {
      guest.attempt("noting a job", () -> job(event.jobId(), true));
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
      guest.attempt("noting a job's end", () -> job(event.jobId(), false));
    }
  }
}
