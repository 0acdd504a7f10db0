package parcae.spark.guest;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/** The plugin. Tests keep its driver side, to set orders directly. */
public final class KeptGuest implements SparkPlugin {
  static Guest guest;

  @Override
  public DriverPlugin driverPlugin() {
    guest = new Guest(KeptGuest.class.getName());
    return guest;
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return null;
  }
}
