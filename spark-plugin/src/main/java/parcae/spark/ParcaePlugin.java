package parcae.spark;

import java.io.IOException;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.package$;
import org.slf4j.LoggerFactory;
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
    String refusal = refusal();
    if (!refusal.isEmpty()) {
      LoggerFactory.getLogger(ParcaePlugin.class)
          .error("parcae: off, Spark schedules by itself: {}", refusal);
      return null; // Spark goes on without
    }
    return new Guest(ParcaePlugin.class.getName());
  }

  /** Why not, asked before any class is loaded that names what another Spark lacks. */
  private static String refusal() {
    try {
      return new Build().refusal(
          package$.MODULE$.SPARK_VERSION(), scala.util.Properties.versionNumberString());
    } catch (IOException | RuntimeException error) {
      return "its jar does not say what it was built for (" + error + "): replace the jar";
    }
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return null;
  }
}
