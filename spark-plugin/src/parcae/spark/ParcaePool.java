package parcae.spark;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.TaskSetManager;
import scala.Enumeration;
import scala.collection.mutable.ArrayBuffer;

/** The root of Spark's pools: its order, and before it that of the service where there is one. */
final class ParcaePool extends Pool {
  private final ParcaeScheduler scheduler;

  ParcaePool(ParcaeScheduler scheduler, Enumeration.Value mode) {
    super("", mode, 0, 0);
    this.scheduler = scheduler;
  }

  @Override
  public String logName() {
    return Pool.class.getName();
  }

  @Override
  public ArrayBuffer<TaskSetManager> getSortedTaskSetQueue() {
    ArrayBuffer<TaskSetManager> queue = super.getSortedTaskSetQueue();
    if (!scheduler.isWorking() || !scheduler.books().isObeying() || queue.size() < 2) {
      return queue;
    }
    try {
      List<Ranked> ranked = new ArrayList<>(queue.size());
      for (int i = 0; i < queue.size(); i++) {
        TaskSetManager manager = queue.apply(i);
        ranked.add(new Ranked(scheduler.books().rank(manager.stageId()), manager));
      }
      ranked.sort(Comparator.comparingLong(entry -> entry.rank)); // stable: Spark's order decides ties
      for (int i = 0; i < ranked.size(); i++) {
        queue.update(i, ranked.get(i).manager);
      }
    } catch (Throwable error) {
      scheduler.broke("ordering the stages", error);
      return super.getSortedTaskSetQueue();
    }
    return queue;
  }

  private static final class Ranked {
    final long rank;
    final TaskSetManager manager;

    Ranked(long rank, TaskSetManager manager) {
      this.rank = rank;
      this.manager = manager;
    }
  }
}
