package parcae.spark.guest;

import java.lang.reflect.Field;
import java.util.Properties;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.SchedulableBuilder;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import scala.collection.mutable.HashMap;

/** Passes every task set to a builder of Spark, FIFO or FAIR, that fills the plugin's pool. */
final class GuestBuilder implements SchedulableBuilder {
  private final Guest guest;
  private final TaskSchedulerImpl scheduler;
  private final GuestPool pool;
  private final SchedulableBuilder sparkBuilder;
  /** Spark's task sets by stage and attempt; guarded by the scheduler's lock. */
  private final HashMap<Object, HashMap<Object, TaskSetManager>> managers;

  /**
   * Creates the builder that takes the place of Spark's.
   *
   * @param guest the plugin
   * @param scheduler Spark's scheduler
   * @param pool the plugin's pool
   * @param sparkBuilder a builder of Spark that fills the plugin's pool
   * @throws ReflectiveOperationException this Spark keeps its task sets elsewhere
   */
  @SuppressWarnings("unchecked")
  GuestBuilder(
      Guest guest, TaskSchedulerImpl scheduler, GuestPool pool, SchedulableBuilder sparkBuilder)
      throws ReflectiveOperationException {
    this.guest = guest;
    this.scheduler = scheduler;
    this.pool = pool;
    this.sparkBuilder = sparkBuilder;
    Field field = TaskSchedulerImpl.class.getDeclaredField("taskSetsByStageIdAndAttempt");
    field.setAccessible(true);
    managers = (HashMap<Object, HashMap<Object, TaskSetManager>>) field.get(scheduler);
  }

  @Override
  public Pool rootPool() {
    return scheduler.rootPool();
  }

  /** Does nothing: Spark's builder has built the pools already. */
  @Override
  public void buildPools() {}

  /** Spark calls this under the scheduler's lock. */
  @Override
  public void addTaskSetManager(Schedulable manager, Properties properties) {
    boolean isSwapped = guest.mayLimit() && manager.getClass() == TaskSetManager.class;
    Schedulable added = isSwapped ? limited((TaskSetManager) manager) : manager;
    sparkBuilder.addTaskSetManager(added, properties);
    guest.attempt("showing a pool", () -> show(rootPool(), added.parent()));
    guest.attempt("reading a priority", () -> guest.checkPriority(properties));
  }

  /** Replaces a task set of Spark, before its first task starts, by one that keeps limits. */
  private TaskSetManager limited(TaskSetManager stock) {
    try {
      TaskSet tasks = stock.taskSet();
      TaskSetManager limited =
          new LimitedTaskSetManager(guest, pool, scheduler, tasks, stock.maxTaskFailures());
      managers.apply(tasks.stageId()).update(tasks.stageAttemptId(), limited);
      return limited;
    } catch (Throwable error) {
      guest.fail("taking a task set's place", error);
      return stock;
    }
  }

  /** Lets Spark's user interface find a user's pool by its name, as it does without the plugin. */
  static void show(Pool root, Schedulable pool) {
    root.schedulableNameToSchedulable().putIfAbsent(pool.name(), pool);
  }
}
