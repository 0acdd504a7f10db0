package parcae.spark.guest;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BiConsumer;
import java.util.function.IntPredicate;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskLocality;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;
import scala.collection.immutable.List$;

/** What happens when the cluster manager does not answer, or refuses. */
final class ExecutorShareTest {
  private static final int MORE_GRANTS = 20;
  private static final long LONGEST_MS = 5_000;
  private static final long MOMENT_MS = 1_500;
  private static final long GRACE_MS = 3_000; // before the fallback number is requested
  private static final long AGAIN_MS = 10_000; // when an executor that stays is killed again

  private static SchedulerBackend backend() {
    Class<?>[] interfaces = {SchedulerBackend.class, ExecutorAllocationClient.class};
    return (SchedulerBackend) Proxy.newProxyInstance(
        ExecutorShareTest.class.getClassLoader(), interfaces, (object, method, arguments) -> null);
  }

  /** Throws a checked exception that is not declared, as methods of Scala do. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void undeclared(Throwable error) throws E {
    throw (E) error;
  }

  private static boolean noAnswer(int number) {
    ExecutorShareTest.<RuntimeException>undeclared(new IOException("no answer"));
    return true;
  }

  /** The numbers that are requested while grants come; the plugin must go on. */
  private static List<Integer> requested(IntPredicate answer) throws Exception {
    List<Integer> numbers = new CopyOnWriteArrayList<>();
    Guest guest = new Guest("a.Plugin");
    SparkConf conf = new SparkConf(false).set("spark.master", "spark://nowhere:7077");
    ExecutorShare share = new ExecutorShare(guest, conf, backend(), number -> {
      numbers.add(number);
      return answer.test(number);
    });
    share.granted(1);
    long endNs = System.nanoTime() + LONGEST_MS * 1_000_000;
    while (numbers.isEmpty() && System.nanoTime() < endNs) {
      Thread.sleep(1);
    }
    for (int i = 2; i < MORE_GRANTS; i++) {
      share.granted(i);
      Thread.sleep(5);
    }
    Check.that(guest.isWorking(), "the plugin works on");
    share.stop();
    return numbers;
  }

  /** A busy executor that is to go takes no more tasks, and is killed once it is idle. */
  @Test
  void drained() throws Exception {
    List<String> asked = new CopyOnWriteArrayList<>();
    scala.collection.immutable.List<String> present =
        List$.MODULE$.<String>empty().$colon$colon("2").$colon$colon("1");
    Class<?>[] interfaces = {SchedulerBackend.class, ExecutorAllocationClient.class};
    SchedulerBackend backend = (SchedulerBackend) Proxy.newProxyInstance(
        ExecutorShareTest.class.getClassLoader(), interfaces, (object, method, arguments) -> {
          if (method.getName().equals("getExecutorIds")) {
            return present;
          }
          Object first = ((scala.collection.immutable.List<?>) arguments[0]).head();
          asked.add(method.getName() + " " + first + " by force: " + arguments[3]);
          return null;
        });
    SparkConf conf = new SparkConf(false).set("spark.master", "spark://nowhere:7077");
    ExecutorShare share = new ExecutorShare(new Guest("a.Plugin"), conf, backend, number -> true);
    share.addPresent();
    startTask(share, "1");
    startTask(share, "2");
    startTask(share, "2");
    share.granted(1);
    Thread.sleep(MOMENT_MS);
    Check.that(share.isDraining("1") && !share.isDraining("2"), "the one with the fewest tasks");
    share.granted(2);
    Thread.sleep(MOMENT_MS);
    Check.that(!share.isDraining("1"), "it stays when it is granted again");
    share.granted(1);
    Thread.sleep(MOMENT_MS);
    Check.same(asked, List.of(), "none is killed while it runs a task");
    endTask(share, "1");
    Thread.sleep(MOMENT_MS);
    Check.same(asked, List.of("killExecutors 1 by force: false"), "it goes at its task's end");
    Thread.sleep(AGAIN_MS + MOMENT_MS);
    Check.same(asked.size(), 2, "it is still there, and is killed again");
    share.stop();
  }

  /** An executor whose end event Spark dropped makes no other one surplus. */
  @Test
  void lost() throws Exception {
    List<String> asked = new CopyOnWriteArrayList<>();
    List<String> present = new CopyOnWriteArrayList<>(List.of("2", "1"));
    Class<?>[] interfaces = {SchedulerBackend.class, ExecutorAllocationClient.class};
    SchedulerBackend backend = (SchedulerBackend) Proxy.newProxyInstance(
        ExecutorShareTest.class.getClassLoader(), interfaces, (object, method, arguments) -> {
          if (!method.getName().equals("getExecutorIds")) {
            asked.add(method.getName());
            return null;
          }
          scala.collection.immutable.List<String> ids = List$.MODULE$.empty();
          for (String id : present) {
            ids = ids.$colon$colon(id);
          }
          return ids;
        });
    SparkConf conf = new SparkConf(false).set("spark.master", "spark://nowhere:7077");
    ExecutorShare share = new ExecutorShare(new Guest("a.Plugin"), conf, backend, number -> true);
    share.addPresent();
    startTask(share, "1");
    present.remove("1");
    share.dropLost();
    share.granted(1);
    Thread.sleep(MOMENT_MS);
    Check.same(asked, List.of(), "the executor that is left stays");
    share.stop();
  }

  /**
   * Without orders an application with work gets an executor, even if it was granted none.
   *
   * @param end how orders end
   */
  private static List<Integer> requestedAfter(BiConsumer<Guest, ExecutorShare> end, String fallback)
      throws Exception {
    List<Integer> numbers = new CopyOnWriteArrayList<>();
    Guest guest = new Guest("a.Plugin");
    SparkConf conf = new SparkConf(false)
        .set("spark.master", "spark://nowhere:7077")
        .set(LinkSettings.FALLBACK, fallback);
    ExecutorShare share = new ExecutorShare(guest, conf, backend(), numbers::add);
    share.granted(0);
    end.accept(guest, share);
    share.listener().onJobStart(
        new SparkListenerJobStart(7, 0, List$.MODULE$.empty(), new Properties()));
    Thread.sleep(GRACE_MS + MOMENT_MS);
    share.stop();
    return numbers;
  }

  private static void off(Guest guest, ExecutorShare share) {
    guest.fail("an event", new IllegalStateException("an error"));
    share.granted(0); // a message that comes late
  }

  private static TaskInfo task(String executor) {
    return new TaskInfo(1, 0, 0, 0, 0, executor, "host", TaskLocality.ANY(), false);
  }

  private static void startTask(ExecutorShare share, String executor) {
    share.listener().onTaskStart(new SparkListenerTaskStart(0, 0, task(executor)));
  }

  private static void endTask(ExecutorShare share, String executor) {
    share.listener().onTaskEnd(new SparkListenerTaskEnd(
        0, 0, "ResultTask", Success$.MODULE$, task(executor), null, null));
  }

  @Test
  void anApplicationWithoutOrders() throws Exception {
    Check.same(
        requestedAfter(ExecutorShareTest::off, "0"), List.of(0, 1), "the plugin is off");
    Check.same(
        requestedAfter(ExecutorShareTest::off, "4"), List.of(0, 4), "with a fallback");
    Check.same(
        requestedAfter((guest, share) -> share.left(), "0"), List.of(0, 1), "no service");
    Check.same(
        requestedAfter((guest, share) -> share.granted(-1), "0"),
        List.of(0, 1),
        "a service that shares out none");
  }

  @Test
  void aClusterManagerThatAnswers() throws Exception {
    Check.that(requested(number -> true).size() > 5, "every grant is requested");
  }

  @Test
  void aClusterManagerThatDoesNotAnswer() throws Exception {
    Check.same(requested(ExecutorShareTest::noAnswer), List.of(1), "requests in a moment");
  }

  @Test
  void aClusterManagerThatRefuses() throws Exception {
    Check.same(requested(number -> false), List.of(1), "requests in a moment");
  }
}
