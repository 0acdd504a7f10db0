package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.TaskSetManager;
import scala.Enumeration;
import scala.collection.mutable.ArrayBuffer;

/**
 * The pool of all task sets: sorts them as Spark does, then by the order in force if any. If the
 * user's pools are kept, the order sorts only inside each of them.
 */
final class GuestPool extends Pool {
  private final Guest guest;
  private final boolean keepsPools;
  private Queue queue = Queue.EMPTY; // of the last offer round

  GuestPool(Guest guest, Enumeration.Value mode, boolean keepsPools) {
    super("parcae", mode, 0, 1);
    this.guest = guest;
    this.keepsPools = keepsPools;
  }

  /** Spark's class name, so that log settings for Spark's class apply to its log lines here too. */
  @Override
  public String logName() {
    return Pool.class.getName();
  }

  @Override
  public ArrayBuffer<TaskSetManager> getSortedTaskSetQueue() {
    ArrayBuffer<TaskSetManager> sorted = super.getSortedTaskSetQueue();
    Order order = guest.order();
    boolean mayHold = guest.mayHold();
    queue = Queue.EMPTY;
    // With fewer than two task sets there is nothing to sort, but limits must be kept.
    boolean isOrdered = order != Order.NONE && (sorted.size() > 1 || order.hasLimits());
    if (!isOrdered && !mayHold) {
      return sorted;
    }
    try {
      List<TaskSetManager> managers = new ArrayList<>(sorted.size());
      for (int i = 0; i < sorted.size(); i++) {
        managers.add(sorted.apply(i));
      }
      List<TaskSetManager> all = new ArrayList<>();
      addTaskSets(this, all);
      if (isOrdered) {
        queue =
            new Queue(order, managers, all, keepsPools, guest.priority(), guest.persons());
        managers = queue.managers();
      }
      if (mayHold) {
        managers = guest.admission().admit(managers, all);
      }
      for (int i = 0; i < managers.size(); i++) {
        sorted.update(i, managers.get(i));
      }
      sorted.remove(managers.size(), sorted.size() - managers.size());
      return sorted;
    } catch (Throwable error) {
      guest.fail("ordering the task sets", error);
      return super.getSortedTaskSetQueue();
    }
  }

  /** Adds all task sets of a pool; Spark sorts only those that have a task to start. */
  private static void addTaskSets(Pool pool, List<TaskSetManager> all) {
    for (Schedulable child : pool.schedulableQueue()) {
      if (child instanceof TaskSetManager) {
        all.add((TaskSetManager) child);
      } else {
        addTaskSets((Pool) child, all);
      }
    }
  }

  /** Whether the order of this offer round lets the task set start another task. */
  boolean mayStart(TaskSetManager manager) {
    return queue.mayStart(manager);
  }
}
