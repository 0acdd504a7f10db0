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

/** Hands every task set to a builder of Spark's own, FIFO or FAIR, that fills our pool. */
final class GuestBuilder implements SchedulableBuilder {
  private final Guest guest;
  private final TaskSchedulerImpl scheduler;
  private final GuestPool pool;
  private final SchedulableBuilder own;
  /** Spark's task sets by stage and attempt; changed under the scheduler's lock. */
  private final HashMap<Object, HashMap<Object, TaskSetManager>> managers;

  /**
   * Takes Spark's place.
   *
   * @param own Spark's builder over our pool
   * @throws ReflectiveOperationException another Spark, whose task sets are kept elsewhere
   */
  @SuppressWarnings("unchecked")
  GuestBuilder(Guest guest, TaskSchedulerImpl scheduler, GuestPool pool, SchedulableBuilder own)
      throws ReflectiveOperationException {
    this.guest = guest;
    this.scheduler = scheduler;
    this.pool = pool;
    this.own = own;
    Field field = TaskSchedulerImpl.class.getDeclaredField("taskSetsByStageIdAndAttempt");
    field.setAccessible(true);
    managers = (HashMap<Object, HashMap<Object, TaskSetManager>>) field.get(scheduler);
  }

  @Override
  public Pool rootPool() {
    return scheduler.rootPool();
  }

  /** Spark's builder has made them already. */
  @Override
  public void buildPools() {}

  /** Spark calls this under the scheduler's lock. */
  @Override
  public void addTaskSetManager(Schedulable manager, Properties properties) {
    boolean isSwapped = guest.mayLimit() && manager.getClass() == TaskSetManager.class;
    Schedulable added = isSwapped ? limited((TaskSetManager) manager) : manager;
    own.addTaskSetManager(added, properties);
    guest.attempt("showing a pool", () -> show(rootPool(), added.parent()));
  }

  /** One that keeps limits, in the place of Spark's, of which no task has started yet. */
  private TaskSetManager limited(TaskSetManager stock) {
    try {
      TaskSet tasks = stock.taskSet();
      TaskSetManager ours =
          new LimitedTaskSetManager(guest, pool, scheduler, tasks, stock.maxTaskFailures());
      managers.apply(tasks.stageId()).update(tasks.stageAttemptId(), ours);
      return ours;
    } catch (Throwable error) {
      guest.fail("taking a task set's place", error);
      return stock;
    }
  }

  /** Lets Spark's user interface find a pool of the user's by its name, as in stock Spark. */
  static void show(Pool root, Schedulable pool) {
    root.schedulableNameToSchedulable().putIfAbsent(pool.name(), pool);
  }
}
