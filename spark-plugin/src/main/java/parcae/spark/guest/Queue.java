package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;

/**
 * The task sets of one offer round, sorted by an order, with the number of running tasks of each
 * job. It is used under the lock of Spark's scheduler.
 *
 * <p>If pools are kept, they stay in Spark's order, by minimum share and weight, and only the task
 * sets inside a pool are sorted. Jobs of a higher priority come before others.
 */
final class Queue {
  static final Queue EMPTY = new Queue(Order.NONE, List.of(), List.of(), false, null, null);

  private static final Comparator<Entry> BY_ORDER =
      Comparator.<Entry>comparingInt(entry -> entry.pool)
          .thenComparing(entry -> entry.job.priority, Comparator.reverseOrder())
          .thenComparingDouble(entry -> entry.tier)
          .thenComparingDouble(entry -> entry.job.share)
          .thenComparingInt(entry -> entry.job.arrival)
          .thenComparingDouble(entry -> entry.rank);

  private final Order order;
  private final Map<String, Job> jobs = new HashMap<>();
  private final List<Entry> entries = new ArrayList<>();

  /** A job and its task sets. Its arrival is the place of the first one that is sorted. */
  private static final class Job {
    final int arrival;
    final Order.Job order;
    final List<TaskSetManager> managers = new ArrayList<>();
    int priority = Integer.MIN_VALUE; // the largest of its sorted task sets
    double share;

    Job(int arrival, Order.Job order) {
      this.arrival = arrival;
      this.order = order;
    }

    int running() {
      int running = 0;
      for (TaskSetManager manager : managers) {
        running += manager.runningTasks();
      }
      return running;
    }
  }

  /** A task set with its sort keys. */
  private static final class Entry {
    final TaskSetManager manager;
    final Job job;
    final int pool; // the place of its pool in Spark's order; 0 for all if pools are not kept
    final double tier;
    final double rank;

    Entry(TaskSetManager manager, Job job, int pool, Order.Stage stage) {
      this.manager = manager;
      this.job = job;
      this.pool = pool;
      tier = job.order.tier + stage.tier;
      rank = stage.rank;
    }
  }

  /**
   * Sorts task sets.
   *
   * @param order the order
   * @param managers the task sets to sort, in Spark's order
   * @param all all task sets, also those whose tasks have all started: they count as running
   * @param keepsPools whether pools stay in Spark's order
   * @param priority the priorities that jobs get
   * @param persons who runs a job
   */
  Queue(
      Order order,
      List<TaskSetManager> managers,
      List<TaskSetManager> all,
      boolean keepsPools,
      Priority priority,
      Persons persons) {
    this.order = order;
    Map<Pool, Integer> places = new IdentityHashMap<>();
    for (TaskSetManager manager : managers) {
      String key = keyOf(manager);
      Job job = jobs.get(key);
      if (job == null) {
        job = new Job(jobs.size(), order.job(key, manager.taskSet().properties(), persons));
        jobs.put(key, job);
      }
      int granted = priority.granted(manager.taskSet().properties(), persons);
      job.priority = Math.max(job.priority, granted);
      int pool = keepsPools ? places.computeIfAbsent(manager.parent(), any -> places.size()) : 0;
      entries.add(new Entry(manager, job, pool, order.stage(manager.stageId())));
    }
    for (TaskSetManager manager : all) {
      Job job = jobs.get(keyOf(manager));
      if (job != null) {
        job.managers.add(manager);
      }
    }
    for (Job job : jobs.values()) {
      job.share = job.order.weight > 0 ? job.running() / job.order.weight : 0;
    }
    entries.sort(BY_ORDER); // stable: ties stay in Spark's order
  }

  /** The sorted task sets, first served first. */
  List<TaskSetManager> managers() {
    List<TaskSetManager> managers = new ArrayList<>(entries.size());
    entries.forEach(entry -> managers.add(entry.manager));
    return managers;
  }

  /** Whether the order lets the task set start another task now. */
  boolean mayStart(TaskSetManager manager) {
    Job job = jobs.get(keyOf(manager));
    if (job == null) {
      return true;
    }
    int stageLimit = order.stage(manager.stageId()).limit;
    if (stageLimit != Order.UNLIMITED) {
      int running = 0;
      for (TaskSetManager other : job.managers) { // attempts of one stage share its limit
        running += other.stageId() == manager.stageId() ? other.runningTasks() : 0;
      }
      if (running >= stageLimit) {
        return false;
      }
    }
    return job.order.limit == Order.UNLIMITED || job.running() < job.order.limit;
  }

  /** The key of the query that a task set belongs to. Spark's priority is the id of the job. */
  static String keyOf(TaskSetManager manager) {
    TaskSet tasks = manager.taskSet();
    return Order.queryOf(tasks.properties(), tasks.priority());
  }
}
