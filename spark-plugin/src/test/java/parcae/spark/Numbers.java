package parcae.spark;

import com.codahale.metrics.Counting;
import com.codahale.metrics.Gauge;
import com.codahale.metrics.Histogram;
import com.codahale.metrics.Metric;
import com.codahale.metrics.MetricRegistry;
import org.apache.spark.SparkEnv;
import org.apache.spark.metrics.source.Source;

/** The plugin's metrics, as Spark's own metrics system has them. */
public final class Numbers {
  private Numbers() {}

  private static MetricRegistry registry() {
    Source source = SparkEnv.get().metricsSystem()
        .getSourcesByName("plugin.parcae.spark.ParcaePlugin").head();
    return source.metricRegistry();
  }

  /** The names of all of them, separated by blanks. */
  public static String names() {
    return String.join(" ", registry().getNames());
  }

  /** The value of a gauge, or how often another metric was updated. */
  public static long of(String name) {
    Metric metric = registry().getMetrics().get(name);
    return metric instanceof Gauge
        ? ((Number) ((Gauge<?>) metric).getValue()).longValue()
        : ((Counting) metric).getCount();
  }

  /** The least value of a histogram. */
  public static long least(String name) {
    return ((Histogram) registry().getMetrics().get(name)).getSnapshot().getMin();
  }
}
