package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import parcae.spark.Check;

/** Limits and weights on a real Spark of four cores. */
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
public final class LimitsTest {
  private static final int CORES = 4;
  private static final int MANY = 1_000;
  private static final int WAIT_S = 60;
  private static final int MOMENT_MS = 500;
  private static final Map<String, Watch> WATCHES = new HashMap<>();
  private static JavaSparkContext context;
  private static int numJobs;

  /** Counts how many tasks of a job run at once, and keeps them running until it is released. */
  private static final class Watch {
    final AtomicInteger running = new AtomicInteger();
    final AtomicInteger most = new AtomicInteger();
    final CountDownLatch arrived;
    final Semaphore released = new Semaphore(0);

    Watch(int numAwaited) {
      arrived = new CountDownLatch(numAwaited);
    }

    void task() throws InterruptedException {
      int now = running.incrementAndGet();
      most.accumulateAndGet(now, Math::max);
      arrived.countDown();
      released.tryAcquire(WAIT_S, TimeUnit.SECONDS);
      running.decrementAndGet();
    }

    void awaitTasks() throws InterruptedException {
      Check.that(arrived.await(WAIT_S, TimeUnit.SECONDS), "tasks that were to run do not");
    }
  }

  /** Starts a job of so many tasks; the test waits until `numAwaited` of them run. */
  private static CompletableFuture<Long> job(String name, int tasks, int numAwaited) {
    WATCHES.put(name, new Watch(numAwaited));
    List<Integer> numbers = new ArrayList<>();
    for (int number = 0; number < tasks; number++) {
      numbers.add(number);
    }
    numJobs++;
    return CompletableFuture.supplyAsync(() ->
        context.parallelize(numbers, tasks).filter(number -> {
          WATCHES.get(name).task();
          return true;
        }).count());
  }

  private static void ends(CompletableFuture<Long> job, long tasks) throws Exception {
    Check.same(job.get(WAIT_S, TimeUnit.SECONDS), tasks, "rows of the result");
  }

  /** The key of the job that is started next. */
  private static String nextKey() {
    return "job " + numJobs;
  }

  private static void order(String key, int limit) {
    KeptGuest.guest.setOrder(new Order.Builder().job(key, 0, 0, limit).build(1));
  }

  private static Class<?> managerClass() {
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.sc().taskScheduler();
    synchronized (scheduler) {
      Schedulable pool = (Schedulable) scheduler.rootPool().schedulableQueue().peek();
      TaskSetManager manager = pool.getSortedTaskSetQueue().apply(0);
      Check.that(
          scheduler.taskSetManagerForAttempt(manager.stageId(), 0).get() == manager,
          "the scheduler's task set is another than the pool's");
      return manager.getClass();
    }
  }

  @Test
  @org.junit.jupiter.api.Order(0) // the first one: a limit changes the class for good
  void noLimit() throws Exception {
    order(nextKey(), Order.UNLIMITED);
    CompletableFuture<Long> job = job("free", 8, CORES);
    WATCHES.get("free").awaitTasks();
    Check.that(managerClass() == TaskSetManager.class, "Spark's own class");
    WATCHES.get("free").released.release(MANY);
    ends(job, 8);
    Check.same(WATCHES.get("free").most.get(), CORES, "most tasks at once");
  }

  @Test
  void leftoversGoOn() throws Exception {
    order(nextKey(), 1);
    CompletableFuture<Long> limited = job("limited", 6, 1);
    WATCHES.get("limited").awaitTasks();
    Check.that(managerClass() == LimitedTaskSetManager.class, "our own class");
    CompletableFuture<Long> other = job("other", 6, CORES - 1);
    WATCHES.get("other").awaitTasks(); // of the same round: all cores but one
    Check.same(WATCHES.get("limited").most.get(), 1, "tasks at once of the limited job");
    WATCHES.get("other").released.release(MANY);
    WATCHES.get("limited").released.release(MANY);
    ends(limited, 6);
    ends(other, 6);
    Check.same(WATCHES.get("limited").most.get(), 1, "tasks at once of the limited job");
  }

  /** An RDD of so many tasks that are watched, and a stage of one task behind them. */
  private static JavaRDD<Integer> shuffled(String name, int tasks) {
    List<Integer> numbers = new ArrayList<>();
    for (int number = 0; number < tasks; number++) {
      numbers.add(number);
    }
    return context.parallelize(numbers, tasks).filter(number -> {
      WATCHES.get(name).task();
      return true;
    }).repartition(1);
  }

  /** A stage whose tasks have all started counts, too: Spark no longer offers cores to it. */
  @Test
  void allStagesCount() throws Exception {
    String key = nextKey();
    order(key, 3);
    WATCHES.put("two stages", new Watch(3));
    numJobs++;
    CompletableFuture<Long> job = CompletableFuture.supplyAsync(() ->
        context.union(shuffled("two stages", 2), shuffled("two stages", 2)).count());
    WATCHES.get("two stages").awaitTasks();
    order(key, 3); // asks for an offer round
    Thread.sleep(MOMENT_MS);
    WATCHES.get("two stages").released.release(MANY);
    ends(job, 4);
    Check.same(WATCHES.get("two stages").most.get(), 3, "tasks at once of both stages");
  }

  private static void liftedLimit(Runnable lift, String name) throws Exception {
    order(nextKey(), 2);
    CompletableFuture<Long> job = job(name, 4, CORES);
    while (WATCHES.get(name).running.get() < 2) {
      Thread.sleep(1);
    }
    Check.same(WATCHES.get(name).most.get(), 2, "tasks at once before");
    // No task ends meanwhile: only an offer round that the plugin asks for can start the others.
    lift.run();
    WATCHES.get(name).awaitTasks();
    WATCHES.get(name).released.release(MANY);
    ends(job, 4);
  }

  /** While the first job has all cores and more tasks to start, a free core goes to the other. */
  @Test
  void weightsShare() throws Exception {
    String first = nextKey();
    CompletableFuture<Long> older = job("older", 8, CORES);
    WATCHES.get("older").awaitTasks();
    KeptGuest.guest.setOrder(new Order.Builder()
        .job(first, 0, 1, Order.UNLIMITED)
        .job(nextKey(), 0, 1, Order.UNLIMITED)
        .build(1));
    CompletableFuture<Long> younger = job("younger", 8, 1);
    for (int core = 0; core < CORES - 1; core++) { // the first ones may come before its task set
      WATCHES.get("older").released.release(1);
      if (WATCHES.get("younger").arrived.await(5, TimeUnit.SECONDS)) {
        break;
      }
    }
    Check.same(WATCHES.get("younger").arrived.getCount(), 0L, "tasks that do not run");
    Check.same(WATCHES.get("older").running.get(), CORES - 1, "tasks of the first job");
    WATCHES.get("older").released.release(MANY);
    WATCHES.get("younger").released.release(MANY);
    ends(older, 8);
    ends(younger, 8);
  }

  @BeforeAll
  static void prepare() throws Exception {
    SparkConf conf = new SparkConf(false)
        .setMaster("local[" + CORES + "]")
        .setAppName("limits")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.plugins", KeptGuest.class.getName());
    context = new JavaSparkContext(conf);
    KeptGuest.guest.shutdown(); // the orders are the test's
  }

  @AfterAll
  static void stop() {
    context.stop();
  }

  @Test
  void aLiftedLimit() throws Exception {
    liftedLimit(() -> KeptGuest.guest.setOrder(new Order.Builder().build(1)), "lifted");
  }

  @Test
  @org.junit.jupiter.api.Order(Integer.MAX_VALUE) // the last one: it turns the plugin off
  void anErrorLiftsLimits() throws Exception {
    liftedLimit(() -> KeptGuest.guest.fail("a test", new IllegalStateException("meant")), "failed");
  }
}
