package parcae.spark.guest;

import java.util.Arrays;
import java.util.Comparator;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import scala.Enumeration;
import scala.collection.mutable.ArrayBuffer;

/** Holds all task sets in Spark's order, re-sorted by the standing order where there is one. */
final class GuestPool extends Pool {
  private final Guest guest;

  GuestPool(Guest guest, Enumeration.Value mode) {
    super("parcae", mode, 0, 1);
    this.guest = guest;
  }

  /** Spark's lines stay under Spark's name, whatever a log configuration says of it. */
  @Override
  public String logName() {
    return Pool.class.getName();
  }

  @Override
  public ArrayBuffer<TaskSetManager> getSortedTaskSetQueue() {
    ArrayBuffer<TaskSetManager> queue = super.getSortedTaskSetQueue();
    Order order = guest.order();
    if (order == Order.NONE || queue.size() < 2) {
      return queue;
    }
    try {
      Ranked[] ranked = new Ranked[queue.size()];
      for (int i = 0; i < ranked.length; i++) {
        TaskSetManager manager = queue.apply(i);
        TaskSet tasks = manager.taskSet();
        ranked[i] = new Ranked(order.tierOf(tasks.properties(), tasks.priority()), manager);
      }
      Arrays.sort(ranked, Comparator.comparingDouble(each -> each.tier)); // stable
      for (int i = 0; i < ranked.length; i++) {
        queue.update(i, ranked[i].manager);
      }
      return queue;
    } catch (Throwable error) {
      guest.fail("ordering the task sets", error);
      return super.getSortedTaskSetQueue();
    }
  }

  private static final class Ranked {
    final double tier;
    final TaskSetManager manager;

    Ranked(double tier, TaskSetManager manager) {
      this.tier = tier;
      this.manager = manager;
    }
  }
}
