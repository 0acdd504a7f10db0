package parcae.spark.guest;

import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;
import scala.Enumeration;
import scala.Option;
import scala.Tuple3;

/**
 * A task set that starts no task beyond the limits of the order in force.
 *
 * <p>One offer round gives many cores away by a queue that is sorted once, so that leaving a task
 * set out of the queue cannot hold a limit: it would take all free cores in the round in which it
 * is below it. Only the task set itself is asked core by core. What it leaves goes to the next
 * task set of the same round. The tasks of a barrier stage start together, whatever the limit is.
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

  /** Spark's lines stay under Spark's name, whatever a log configuration says of it. */
  @Override
  public String logName() {
    return TaskSetManager.class.getName();
  }

  @Override
  public Option<Tuple3<Object, Enumeration.Value, Object>> dequeueTaskHelper(
      String executor, String host, Enumeration.Value locality, boolean isSpeculative) {
    try {
      if (guest.order().hasLimits() && !isBarrier() && !pool.mayStart(this)) {
        return Option.empty();
      }
    } catch (Throwable error) {
      guest.fail("the question whether a task may start", error);
    }
    return super.dequeueTaskHelper(executor, host, locality, isSpeculative);
  }
}
