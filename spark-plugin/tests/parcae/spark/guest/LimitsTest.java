package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;
import parcae.spark.Check;

/** Limits on a real Spark of four cores, whose orders the test gives; the argument is a policy. */
public final class LimitsTest {
  private static final int CORES = 4;
  private static final int WAIT_S = 60;
  private static final Map<String, Watch> WATCHES = new HashMap<>();
  private static Guest guest;
  private static JavaSparkContext context;
  private static int numJobs;

  private LimitsTest() {}

  /** The plugin, whose driver's side the test keeps. */
  public static final class Plugin implements SparkPlugin {
    @Override
    public DriverPlugin driverPlugin() {
      guest = new Guest(Plugin.class.getName());
      return guest;
    }

    @Override
    public ExecutorPlugin executorPlugin() {
      return null;
    }
  }

  /** How many tasks of a job run at once, and what holds them. */
  private static final class Watch {
    final AtomicInteger running = new AtomicInteger();
    final AtomicInteger most = new AtomicInteger();
    final CountDownLatch arrived;
    final CountDownLatch released = new CountDownLatch(1);

    Watch(int numAwaited) {
      arrived = new CountDownLatch(numAwaited);
    }

    void task() throws InterruptedException {
      int now = running.incrementAndGet();
      most.accumulateAndGet(now, Math::max);
      arrived.countDown();
      released.await(WAIT_S, TimeUnit.SECONDS);
      running.decrementAndGet();
    }

    void awaitTasks() throws InterruptedException {
      Check.that(arrived.await(WAIT_S, TimeUnit.SECONDS), "tasks that were to run do not");
    }
  }

  /** A job of so many tasks, of which the test awaits some. */
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
    guest.setOrder(new Order.Builder().job(key, 0, 0, limit).build(1));
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

  private static void noLimit() throws Exception {
    order(nextKey(), Order.UNLIMITED);
    CompletableFuture<Long> job = job("free", 8, CORES);
    WATCHES.get("free").awaitTasks();
    Check.that(managerClass() == TaskSetManager.class, "Spark's own class");
    WATCHES.get("free").released.countDown();
    ends(job, 8);
    Check.same(WATCHES.get("free").most.get(), CORES, "most tasks at once");
  }

  private static void leftoversGoOn() throws Exception {
    order(nextKey(), 1);
    CompletableFuture<Long> limited = job("limited", 6, 1);
    WATCHES.get("limited").awaitTasks();
    Check.that(managerClass() == LimitedTaskSetManager.class, "our own class");
    CompletableFuture<Long> other = job("other", 6, CORES - 1);
    WATCHES.get("other").awaitTasks(); // of the same round: all cores but one
    Check.same(WATCHES.get("limited").most.get(), 1, "tasks at once of the limited job");
    WATCHES.get("other").released.countDown();
    WATCHES.get("limited").released.countDown();
    ends(limited, 6);
    ends(other, 6);
    Check.same(WATCHES.get("limited").most.get(), 1, "tasks at once of the limited job");
  }

  private static void liftedLimit(Runnable lift, String name) throws Exception {
    order(nextKey(), 2);
    CompletableFuture<Long> job = job(name, 4, CORES);
    while (WATCHES.get(name).running.get() < 2) {
      Thread.sleep(1);
    }
    Check.same(WATCHES.get(name).most.get(), 2, "tasks at once before");
    lift.run(); // no task ends meanwhile, so that only a round of our own starts the others
    WATCHES.get(name).awaitTasks();
    WATCHES.get(name).released.countDown();
    ends(job, 4);
  }

  public static void main(String[] args) throws Exception {
    SparkConf conf = new SparkConf(false)
        .setMaster("local[" + CORES + "]")
        .setAppName("limits")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.plugins", Plugin.class.getName())
        .set("spark.parcae.policy", args[0]);
    context = new JavaSparkContext(conf);
    guest.shutdown(); // the orders are the test's
    Check.test("without a limit the task sets are Spark's", LimitsTest::noLimit);
    Check.test("a limit of 1 holds, and what it leaves others take", LimitsTest::leftoversGoOn);
    Check.test("a lifted limit", () ->
        liftedLimit(() -> guest.setOrder(new Order.Builder().build(1)), "lifted"));
    Check.test("an error lifts limits", () ->
        liftedLimit(() -> guest.fail("a test", new IllegalStateException("meant")), "failed"));
    context.stop();
    Check.done();
  }
}
