package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import parcae.spark.Check;

/** Runs the link beside a busy application: neither may wait for the other. */
final class LinkTest {
  private static final long BUSY_MS = 1_000;
  private static final long HELD_NS = 20_000;
  private static final int LISTENERS = 2;
  private static final int TASKS = 1_000_000_000;

  private LinkTest() {}

  /**
   * The arguments are the ports of a service whose orders always ask for another request at once,
   * and of one that sends orders once in a connection.
   */
  public static void main(String[] arguments) throws Exception {
    SparkConf conf = new SparkConf(false).set(LinkSettings.SERVICE, "127.0.0.1:" + arguments[0]);
    Link[] link = new Link[1];
    Picture picture = new Picture(() -> link[0].wakeUp());
    link[0] = new Link(new LinkSettings(conf), "busy", "busy", picture, new IgnoreOrders());
    link[0].start();
    begin(picture);
    List<Thread> busy = new ArrayList<>();
    for (int i = 0; i < LISTENERS; i++) {
      Thread thread = new Thread(() -> work(picture, link[0]), "busy");
      thread.setDaemon(true);
      thread.start();
      busy.add(thread);
    }
    Check.test("a busy application and a service that is asked all the time", () -> {
      for (Thread thread : busy) {
        thread.join(5 * BUSY_MS);
        Check.that(!thread.isAlive(), "the application waits for the link");
      }
      Check.that(link[0].isFresh(), "the link waits for the application");
    });
    link[0].stop();
    Check.test("why there is no connection", () -> {
      String host = "no-such-host.invalid";
      Check.that(reason(host + ":1", "").contains("UnknownHost"), "a host without an address");
      String file = "/no/such/file.pem";
      String reason = reason("127.0.0.1:" + arguments[0], file);
      Check.that(reason.contains("NoSuchFile") && reason.contains(file), reason);
    });
    Check.test("why orders end", () -> {
      String reason = reasonAfterOrders(arguments[1]);
      Check.that(reason.endsWith("it is connected, and sends no orders"), reason);
    });
    System.exit(0); // even if a thread still waits
  }

  /** The reason that the log has for a missing connection. */
  private static String reason(String address, String trustFile) throws Exception {
    return reason(new SparkConf(false)
        .set(LinkSettings.SERVICE, address)
        .set("spark.parcae.tls.ca", trustFile));
  }

  /** The reason that the log has for a missing connection with these settings. */
  static String reason(SparkConf settings) throws Exception {
    LinkedBlockingQueue<String> reasons = new LinkedBlockingQueue<>();
    SparkConf conf = settings.set("spark.parcae.orderTtlMs", "100");
    Link link = linkOf(conf, new IgnoreOrders() {
      @Override
      public void expired(long silentMs, String why) {
        reasons.add(why);
      }
    });
    String reason = reasons.poll(10 * BUSY_MS, TimeUnit.MILLISECONDS);
    link.stop();
    return String.valueOf(reason);
  }

  /** The reason that the log has for the end of the orders of the service on a port. */
  private static String reasonAfterOrders(String port) throws Exception {
    LinkedBlockingQueue<String> reasons = new LinkedBlockingQueue<>();
    SparkConf conf = new SparkConf(false)
        .set(LinkSettings.SERVICE, "127.0.0.1:" + port)
        .set("spark.parcae.orderTtlMs", "100");
    Link link = linkOf(conf, new IgnoreOrders() {
      private volatile boolean hasOrders;

      @Override
      public void back(String from, long silentMs) {
        hasOrders = true;
      }

      @Override
      public void expired(long silentMs, String why) {
        if (hasOrders) {
          reasons.add(why);
        }
      }
    });
    String reason = reasons.poll(10 * BUSY_MS, TimeUnit.MILLISECONDS);
    link.stop();
    return String.valueOf(reason);
  }

  private static Link linkOf(SparkConf conf, OrderHandler handler) throws Exception {
    Link link =
        new Link(new LinkSettings(conf), "other", "other", new Picture(() -> { }), handler);
    link.start();
    return link;
  }

  private static void begin(Picture picture) {
    picture.coresChanged(2);
    Follower.ListedStage stage = new Follower.ListedStage(0, TASKS, List.of());
    picture.jobStarted(
        new Follower.StartedJob(0, "job 0", null, List.of(), "busy", List.of(stage)));
    picture.stageSubmitted(0, 0, TASKS);
  }

  /** Wakes the link up under the picture's lock all the time, as a listener does for tasks. */
  private static void work(Picture picture, Link link) {
    long end = System.nanoTime() + BUSY_MS * 1_000_000;
    for (int i = 0; System.nanoTime() < end; i++) {
      synchronized (picture) {
        spin(HELD_NS);
        link.wakeUp();
        if (i % 1_000 == 0) {
          picture.taskStarted(0, 0);
          picture.taskEnded(0, 0, true, 1);
        }
      }
      spin(HELD_NS / 4);
    }
  }

  private static void spin(long ns) {
    long end = System.nanoTime() + ns;
    while (System.nanoTime() < end) {
      Thread.onSpinWait();
    }
  }

  /** Ignores orders. */
  private static class IgnoreOrders implements OrderHandler {
    @Override
    public void take(Wire.Orders orders) {}

    @Override
    public void expired(long silentMs, String why) {}

    @Override
    public void back(String from, long silentMs) {}
  }
}
