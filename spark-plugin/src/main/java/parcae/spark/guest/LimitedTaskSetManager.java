package parcae.spark.guest;

import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;
import scala.Enumeration;
import scala.Option;
import scala.Tuple3;

/**
 * A task set that starts no task beyond the limits of the order in force, and none on an executor
 * that is to go.
 *
 * <p>The limit must be checked here. An offer round sorts the queue once and then assigns many
 * cores. A task set in the queue that is below its limit could take all free cores of that round.
 * Spark calls only the task set itself for every single core. A core that it leaves goes to the
 * next task set of the same round. The tasks of a barrier stage start together, whatever the limit.
 */
final class LimitedTaskSetManager extends TaskSetManager {
  private final Guest guest;
  private final GuestPool pool;

  LimitedTaskSetManager(
      Guest guest, GuestPool pool, TaskSchedulerImpl scheduler, TaskSet tasks, int maxFailures) {
    super(scheduler, tasks, maxFailures, scheduler.healthTrackerOpt(), new SystemClock());
    this.guest = guest;
    this.pool = pool;
  }

  /** Spark's class name, so that log settings for Spark's class apply to its log lines here too. */
  @Override
  public String logName() {
    return TaskSetManager.class.getName();
  }

  @Override
  public Option<Tuple3<Object, Enumeration.Value, Object>> dequeueTaskHelper(
      String executor, String host, Enumeration.Value locality, boolean isSpeculative) {
    try {
      if (!isBarrier() && !mayStart(executor)) {
        return Option.empty();
      }
    } catch (Throwable error) {
      guest.fail("checking whether a task may start", error);
    }
    return super.dequeueTaskHelper(executor, host, locality, isSpeculative);
  }

  private boolean mayStart(String executor) {
    boolean isStaying = !guest.isDraining(executor);
    return isStaying && (!guest.order().hasLimits() || pool.mayStart(this));
  }
}
