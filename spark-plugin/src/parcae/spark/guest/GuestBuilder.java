package parcae.spark.guest;

import java.util.Properties;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.SchedulableBuilder;

/** Hands every task set to a builder of Spark's own, FIFO or FAIR, that fills our pool. */
final class GuestBuilder implements SchedulableBuilder {
  private final Guest guest;
  private final Pool root;
  private final SchedulableBuilder own;

  GuestBuilder(Guest guest, Pool root, SchedulableBuilder own) {
    this.guest = guest;
    this.root = root;
    this.own = own;
  }

  @Override
  public Pool rootPool() {
    return root;
  }

  /** Spark's builder has made them already. */
  @Override
  public void buildPools() {}

  @Override
  public void addTaskSetManager(Schedulable manager, Properties properties) {
    own.addTaskSetManager(manager, properties);
    guest.attempt("showing a pool", () -> show(root, manager.parent()));
  }

  /** Lets Spark's user interface find a pool of the user's by its name, as in stock Spark. */
  static void show(Pool root, Schedulable pool) {
    root.schedulableNameToSchedulable().putIfAbsent(pool.name(), pool);
  }
}
