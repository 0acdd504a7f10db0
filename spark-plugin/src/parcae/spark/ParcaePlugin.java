package parcae.spark;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import parcae.spark.guest.Guest;

/**
 * Orders the queries of an application, inside Spark's own scheduler.
 *
 * <p>Use: `--conf spark.plugins=parcae.spark.ParcaePlugin` with `--conf spark.parcae.policy=FILE`
 * (plans by itself) or `--conf spark.parcae.service=HOST:PORT` (asks a service), or both, and the
 * jar on the driver's class path. Any master; executors need no jar.
 */
public final class ParcaePlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    return new Guest(ParcaePlugin.class.getName());
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return null;
  }
}
