package parcae.spark.guest;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import parcae.spark.Check;

/** Pools and priorities under an order, on a real Spark of four cores. */
public final class PoolsTest {
  private static final int CORES = 4;
  private static final int MANY = 1_000;
  private static final int TASKS = 40;
  private static final int WAIT_S = 30;
  private static final String POOLS = "<allocations><pool name='one'><weight>1</weight></pool>"
      + "<pool name='three'><schedulingMode>FAIR</schedulingMode><weight>3</weight></pool>"
      + "<pool name='floor'><minShare>2</minShare></pool></allocations>";
  private static final Map<String, Watch> WATCHES = new HashMap<>();
  private static JavaSparkContext context;
  private static int numJobs;

  /** The tasks of a job, each of which runs until the test releases it. */
  private static final class Watch {
    final AtomicInteger running = new AtomicInteger();
    final Semaphore released = new Semaphore(0);

    void task() throws InterruptedException {
      running.incrementAndGet();
      released.tryAcquire(WAIT_S, TimeUnit.SECONDS);
      running.decrementAndGet();
    }
  }

  private static void await(BooleanSupplier holds, String what) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
    while (!holds.getAsBoolean()) {
      Check.that(System.nanoTime() < end, what + " does not happen; running: " + running());
      Thread.sleep(2);
    }
  }

  private static Map<String, Integer> running() {
    Map<String, Integer> running = new HashMap<>();
    WATCHES.forEach((name, watch) -> running.put(name, watch.running.get()));
    return running;
  }

  /** Starts a job in a pool and waits until Spark's scheduler has its task set. */
  private static CompletableFuture<Long> job(String name, String pool, String priority)
      throws InterruptedException {
    WATCHES.put(name, new Watch());
    List<Integer> numbers = new ArrayList<>();
    for (int number = 0; number < TASKS; number++) {
      numbers.add(number);
    }
    numJobs++;
    int before = numTaskSets();
    CompletableFuture<Long> job = CompletableFuture.supplyAsync(() -> {
      context.setLocalProperty("spark.scheduler.pool", pool);
      context.setLocalProperty("spark.parcae.priority", priority);
      return context.parallelize(numbers, TASKS).filter(number -> {
        WATCHES.get(name).task();
        return true;
      }).count();
    }, task -> new Thread(task).start()); // a thread for each job, as local properties belong to it
    await(() -> numTaskSets() > before, "the task set of " + name);
    return job;
  }

  private static int numTaskSets() {
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.sc().taskScheduler();
    synchronized (scheduler) {
      return scheduler.rootPool().getSortedTaskSetQueue().size();
    }
  }

  /** Ends a task of the first job; the free core must go to the second one. */
  private static void goesOn(String from, String to) throws InterruptedException {
    int wanted = WATCHES.get(to).running.get() + (from.equals(to) ? 0 : 1);
    int left = WATCHES.get(from).released.availablePermits();
    Check.same(left, 0, "tasks to release");
    WATCHES.get(from).released.release();
    await(() -> WATCHES.get(from).released.availablePermits() == 0
        && WATCHES.get(to).running.get() == wanted
        && WATCHES.values().stream().mapToInt(watch -> watch.running.get()).sum() == CORES,
        "a core goes from " + from + " to " + to);
  }

  private static void endAll(List<CompletableFuture<Long>> jobs) throws Exception {
    WATCHES.values().forEach(watch -> watch.released.release(MANY));
    for (CompletableFuture<Long> job : jobs) {
      Check.same(job.get(WAIT_S, TimeUnit.SECONDS), (long) TASKS, "rows of the result");
    }
    WATCHES.clear();
  }

  /** An order in which the jobs that start next are served by the given tiers. */
  private static void order(double... tiers) {
    Order.Builder order = new Order.Builder();
    for (int i = 0; i < tiers.length; i++) {
      order.job("job " + (numJobs + i), tiers[i], 0, Order.UNLIMITED);
    }
    KeptGuest.guest.setOrder(order.build(100));
  }

  /** Whatever the order says, pools share by weight; inside a pool it is the order that decides. */
  private static void sharesHold() throws Exception {
    order(-5, 2, 1);
    List<CompletableFuture<Long>> jobs = new ArrayList<>();
    jobs.add(job("first", "one", null));
    await(() -> WATCHES.get("first").running.get() == CORES, "all cores for the first job");
    jobs.add(job("late", "three", null));
    jobs.add(job("early", "three", null));
    goesOn("first", "early"); // `one` runs 3 of weight 1, `three` none
    goesOn("first", "early");
    goesOn("first", "early");
    goesOn("first", "first"); // 0 of 1 against 3 of 3
    goesOn("early", "early"); // 1 of 1 against 2 of 3
    Check.same(running(), Map.of("first", 1, "late", 0, "early", 3), "running tasks");
    jobs.add(job("needy", "floor", null));
    goesOn("early", "needy"); // below the minimum share
    goesOn("early", "needy");
    goesOn("early", "early"); // 0 of 3 against 1 of 1
    Check.same(
        running(), Map.of("first", 1, "late", 0, "early", 1, "needy", 2), "running tasks");
    endAll(jobs);
  }

  /** Without pools that are kept, the order goes first. */
  private static void theOrderGoesFirst() throws Exception {
    order(-5, 2);
    List<CompletableFuture<Long>> jobs = new ArrayList<>();
    jobs.add(job("first", "one", null));
    await(() -> WATCHES.get("first").running.get() == CORES, "all cores for the first job");
    jobs.add(job("other", "three", null));
    goesOn("first", "first");
    goesOn("first", "first");
    endAll(jobs);
  }

  /** A higher priority goes before the order, but not out of its pool, and not above the grant. */
  private static void prioritiesHold(boolean keepsPools) throws Exception {
    order(-5, 0, 1, 2, 4, 3);
    List<CompletableFuture<Long>> jobs = new ArrayList<>();
    jobs.add(job("first", "one", null));
    await(() -> WATCHES.get("first").running.get() == CORES, "all cores for the first job");
    jobs.add(job("low", "three", "-1"));
    jobs.add(job("plain", "three", "no number"));
    jobs.add(job("high", "three", "7"));
    jobs.add(job("highest", "three", "2000000000"));
    jobs.add(job("higher", "three", "10"));
    goesOn("first", "higher");
    goesOn("first", "higher");
    goesOn("first", "higher");
    goesOn("first", keepsPools ? "first" : "higher");
    endAll(jobs);
  }

  /** Without a grant a priority only lowers a query. */
  @Test
  void grants() throws Exception {
    Check.same(granted("0", -3, "anna"), -3, "lower than others");
    Check.same(granted("0", 7, "anna"), 0, "no grant");
    Check.same(granted("5", 7, "anna"), 5, "a grant for all");
    String some = "anna=9, b=c=4,*=1";
    Check.same(granted(some, 7, "anna"), 7, "a grant for her");
    Check.same(granted(some, 7, "b=c"), 4, "a name with a sign");
    Check.same(granted(some, 7, "eve"), 1, "a grant for others");
    Check.same(granted("anna=9", 7, "eve"), 0, "no grant for others");
    for (String wrong : new String[] {"-1", "anna", "1e3", "99999999999", "anna=", "=3", "a=1,2"}) {
      try {
        new Priority(new SparkConf(false).set("spark.parcae.priority.max", wrong));
        throw new AssertionError("was not refused: " + wrong);
      } catch (PolicyException error) {
        Check.that(error.getMessage().contains("max is " + wrong + ";"), error.getMessage());
      }
    }
  }

  private static int granted(String setting, int asked, String user) throws Exception {
    Properties properties = new Properties();
    properties.setProperty(Priority.PROPERTY, String.valueOf(asked));
    properties.setProperty(Persons.PROPERTY, user);
    SparkConf conf = new SparkConf(false).set("spark.parcae.priority.max", setting);
    return new Priority(conf).granted(properties, new Persons());
  }

  @ParameterizedTest
  @CsvSource({"true, '', true", "true, replace, false", "false, '', false"})
  void poolsAndPrioritiesHold(
      boolean hasFile, String setting, boolean keepsPools, @TempDir Path folder) throws Exception {
    SparkConf conf = new SparkConf(false)
        .setMaster("local[" + CORES + "]")
        .setAppName("pools")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.scheduler.mode", "FAIR")
        .set("spark.plugins", KeptGuest.class.getName())
        .set("spark.parcae.pools", setting)
        .set("spark.parcae.priority.max", "10");
    if (hasFile) {
      Path pools = Files.writeString(folder.resolve("pools.xml"), POOLS);
      conf.set("spark.scheduler.allocation.file", pools.toString());
    }
    context = new JavaSparkContext(conf);
    numJobs = 0; // Spark counts jobs in a context
    try {
      KeptGuest.guest.shutdown(); // the orders are the test's
      if (keepsPools) {
        sharesHold();
      } else {
        theOrderGoesFirst();
      }
      prioritiesHold(keepsPools);
    } finally {
      context.stop();
    }
  }
}
