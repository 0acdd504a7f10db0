package parcae.spark.guest;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.IntPredicate;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SchedulerBackend;
import parcae.spark.Check;

/** What happens when the cluster manager does not answer, or refuses. */
final class ExecutorShareTest {
  private static final int MORE_GRANTS = 20;
  private static final long LONGEST_MS = 5_000;

  private ExecutorShareTest() {}

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

  public static void main(String[] args) throws Exception {
    Check.test("a cluster manager that answers", () ->
        Check.that(requested(number -> true).size() > 5, "every grant is requested"));
    Check.test("a cluster manager that does not answer", () ->
        Check.same(requested(ExecutorShareTest::noAnswer), List.of(1), "requests in a moment"));
    Check.test("a cluster manager that refuses", () ->
        Check.same(requested(number -> false), List.of(1), "requests in a moment"));
    Check.done();
  }
}
