package parcae.spark.guest;

import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.SchedulingMode;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/** No exception may leave the guest, and after the first error it gives no orders. */
final class GuestTest {
  private static void isOff(Guest guest) {
    AtomicInteger count = new AtomicInteger();
    guest.setOrder(new Order.Builder().job("7", 1, 0, Order.UNLIMITED).build(2));
    guest.attempt("nothing", count::incrementAndGet);
    Check.same(count.get(), 0, "actions after an error");
    Check.that(guest.order() == Order.NONE, "an order after an error");
  }

  @Test
  void hooksWithoutASpark() throws Exception {
    Guest started = new Guest("a.Plugin");
    Check.that(started.init(null, null).isEmpty(), "settings for executors");
    isOff(started);
    Guest moved = new Guest("a.Plugin");
    moved.registerMetrics("app", null);
    isOff(moved);
  }

  @Test
  void errorsOfAllKinds() throws Exception {
    Guest guest = new Guest("a.Plugin");
    guest.setOrder(new Order.Builder().job("7", 1, 0, Order.UNLIMITED).build(2));
    Check.that(guest.order() != Order.NONE, "an order in force");
    guest.attempt("a part that is missing", () -> {
      throw new NoSuchFieldError("schedulableBuilder");
    });
    isOff(guest);
  }

  @Test
  void whatTheLogSays() throws Exception {
    String line = Reason.of("moving in", new NoSuchFieldException("schedulableBuilder"));
    Check.that(line.contains("moving in failed") && line.contains("schedulableBuilder"), line);
    Check.that(line.contains("`parcae spark doctor`") && !line.contains("\n"), line);
    String fault = Reason.of("x", new IllegalStateException("a\nb"));
    Check.that(fault.endsWith("report it") && !fault.contains("\n"), fault);
  }

  @Test
  void poolsStayToBeFound() throws Exception {
    Pool root = new Pool("", SchedulingMode.FAIR(), 0, 0);
    Pool gold = new Pool("gold", SchedulingMode.FIFO(), 0, 3);
    GuestBuilder.show(root, gold);
    GuestBuilder.show(root, new Pool("gold", SchedulingMode.FIFO(), 0, 1));
    Check.that(root.schedulableNameToSchedulable().get("gold") == gold, "the first of a name");
    Check.same(root.schedulableQueue().size(), 0, "pools that Spark sorts");
  }
}
