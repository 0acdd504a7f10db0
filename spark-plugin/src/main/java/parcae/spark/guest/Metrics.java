package parcae.spark.guest;

import com.codahale.metrics.Counter;
import com.codahale.metrics.ExponentiallyDecayingReservoir;
import com.codahale.metrics.Gauge;
import com.codahale.metrics.Histogram;
import com.codahale.metrics.MetricRegistry;
import com.codahale.metrics.Timer;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/** The plugin's numbers in Spark's own metrics system, which hands them to every sink. */
final class Metrics {
  /** What the metric `mode` shows once the plugin has failed; else the place of `Control.Mode`. */
  static final int FAILED = -1;

  private final Timer plans = new Timer();
  private final Histogram errors = new Histogram(new ExponentiallyDecayingReservoir());
  private final Counter repaired = new Counter();

  /** Adds the numbers to a registry of Spark. */
  void register(MetricRegistry registry, Guest guest) {
    registry.register("plans", plans);
    registry.register("estimateErrorPercent", errors);
    registry.register("eventsRepaired", repaired);
    gauge(registry, "eventsDropped", guest::numDroppedEvents);
    gauge(registry, "mode", guest::modeNumber);
    gauge(registry, "openQueries", () -> guest.openQueries().size());
    gauge(registry, "waitingQueries", () ->
        guest.openQueries().stream().filter(query -> query.waitedMs > 0).count());
    gauge(registry, "openUsers", () ->
        guest.openQueries().stream().map(query -> query.label.user).distinct().count());
    gauge(registry, "largestOverdraftMs", () -> (long) guest.openQueries().stream()
        .mapToDouble(query -> query.overdraftMs).filter(ms -> ms > 0).max().orElse(0));
    gauge(registry, "heldQueries", guest::numHeld);
    gauge(registry, "longestWaitMs", () ->
        guest.openQueries().stream().mapToLong(query -> query.waitedMs).max().orElse(0));
  }

  private static void gauge(MetricRegistry registry, String name, LongSupplier value) {
    registry.register(name, (Gauge<Long>) value::getAsLong);
  }

  /** A plan has taken so long. */
  void planned(long tookNs) {
    plans.update(tookNs, TimeUnit.NANOSECONDS);
  }

  /**
   * A query has ended: by how many percent the larger of its expected and its true work exceeds the
   * smaller.
   */
  void ended(double expectedMs, double workMs) {
    double least = Math.max(1, Math.min(expectedMs, workMs));
    errors.update(Math.round(100 * (Math.max(1, Math.max(expectedMs, workMs)) / least - 1)));
  }

  /** So many events that Spark dropped were made up for; returns how many before. */
  long repaired(int events) {
    long before = repaired.getCount();
    repaired.inc(events);
    return before;
  }
}
