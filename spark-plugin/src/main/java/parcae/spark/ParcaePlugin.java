package parcae.spark;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import parcae.spark.guest.Guest;

/**
 * The plugin that orders the queries of an application, inside Spark's own scheduler.
 *
 * <p>Use: put the jar on the driver's class path and set
 * `--conf spark.plugins=parcae.spark.ParcaePlugin`. Also set `--conf spark.parcae.policy=FILE` (the
 * plugin plans by itself), `--conf spark.parcae.service=HOST:PORT` (the plugin sends events to a
 * service, which plans), or both. It works with any master. Executors do not need the jar.
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
