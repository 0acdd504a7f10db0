package parcae.spark.guest;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;
import parcae.spark.Workouts;

/**
 * On a real Spark, a user who is alone is served exactly as by least remaining work: a planner with
 * accounts and one without hear the same events and must make the same orders.
 */
public final class AloneTest {
  private static final String PLAIN =
      "{\"format\": \"parcae-policy\", \"version\": 3, \"policy\": \"srpt\", \"kind\": \"srpt\","
          + " \"parameters\": {}, \"account\": null, \"mean_work_ms\": 100000,"
          + " \"guess_ms\": 1000, \"jobs\": {}}";

  private static JavaSparkContext context;
  private static long nowMs;
  private static int same;
  private static int unlike;

  private static Planner planner(Policy policy) {
    return new Planner(policy, () -> nowMs, System::currentTimeMillis, user -> 1);
  }

  /** Passes events on to both planners, and compares their orders after each. */
  private static Follower both(Planner one, Planner other) {
    return (Follower) Proxy.newProxyInstance(
        AloneTest.class.getClassLoader(), new Class<?>[] {Follower.class}, (proxy, event, with) -> {
          nowMs = System.nanoTime() / 1_000_000;
          try {
            event.invoke(one, with);
            event.invoke(other, with);
          } catch (InvocationTargetException error) {
            throw error.getCause();
          }
          Map<String, Double> order = one.plan().tiers();
          if (order.equals(other.plan().tiers())) {
            same += order.size() > 1 ? 1 : 0;
          } else {
            unlike++;
          }
          return null;
        });
  }

  private static void run(JavaSparkContext context, String user, int jobs) throws Exception {
    context.setLocalProperty(Persons.PROPERTY, user);
    Check.same(Workouts.jobs(context, jobs, 12, 20), jobs, "right results");
    Check.that(Workouts.flaky(context, 6), "the result where tasks fail");
  }

  @BeforeAll
  static void prepare() throws Exception {
    SparkConf conf = new SparkConf(false)
        .setMaster("local[4,4]")
        .setAppName("alone")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.plugins", "parcae.spark.ParcaePlugin");
    context = new JavaSparkContext(conf);
    Path file = Files.writeString(Files.createTempFile("policy", ".json"), PLAIN);
    Follower follower = both(planner(Policy.plain()), planner(Policy.read(file)));
    follower.coresChanged(4);
    context.sc().listenerBus().addToQueue(
        new GuestListener(new Guest("a.Plugin"), context.sc(), List.of(follower), "", 1), "test");
  }

  @AfterAll
  static void stop() {
    context.stop();
  }

  @Test
  void oneUser() throws Exception {
    run(context, "ann", 6);
    context.sc().listenerBus().waitUntilEmpty();
    Check.that(same > 100, "orders of several queries: " + same);
    Check.same(unlike, 0, "orders that differ");
  }

  @Test
  void twoUsers() throws Exception {
    Thread other = new Thread(() -> {
      try {
        run(context, "bob", 2);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    });
    other.start();
    run(context, "ann", 6);
    other.join();
    context.sc().listenerBus().waitUntilEmpty();
    Check.that(unlike > 100, "orders that differ: " + unlike);
  }
}
