package parcae.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.scheduler.DirectTaskResult;
import org.apache.spark.scheduler.ExecutorLossReason;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;
import scala.Enumeration;
import scala.Option;
import scala.Tuple3;

/** A task set whose tasks are launched while its stage has a free slot. Barriers and speculative copies are Spark's own. */
final class ParcaeTaskSetManager extends TaskSetManager {
  private final ParcaeScheduler scheduler;
  private final boolean isFree;
  private final Map<Long, Boolean> told = new HashMap<>(); // finished tasks that wait for Spark: whether they counted

  ParcaeTaskSetManager(ParcaeScheduler scheduler, TaskSet taskSet, int maxTaskFailures) {
    super(scheduler, taskSet, maxTaskFailures, scheduler.healthTrackerOpt(), new SystemClock());
    this.scheduler = scheduler;
    this.isFree = isBarrier();
  }

  @Override
  public String logName() {
    return TaskSetManager.class.getName();
  }

  @Override
  public Option<Tuple3<Object, Enumeration.Value, Object>> dequeueTaskHelper(
      String executor, String host, Enumeration.Value locality, boolean isSpeculative) {
    if (scheduler == null || !scheduler.isWorking()) {
      return super.dequeueTaskHelper(executor, host, locality, isSpeculative);
    }
    try {
      if (!isSpeculative && !isFree && !scheduler.books().mayLaunch(stageId(), executor)) {
        return Option.empty();
      }
    } catch (Throwable error) {
      scheduler.broke("the question whether a task may run", error);
    }
    Option<Tuple3<Object, Enumeration.Value, Object>> found = super.dequeueTaskHelper(executor, host, locality, isSpeculative);
    try {
      if (found.isDefined() && !isFree) {
        scheduler.books().launched(stageId(), tasks()[(Integer) found.get()._1()].partitionId(), executor);
      }
    } catch (Throwable error) {
      scheduler.broke("noting a launch", error);
    }
    return found;
  }

  /** The tasks of a barrier are dequeued one by one, perhaps in vain, and launched together. */
  @Override
  public void addRunningTask(long tid) {
    super.addRunningTask(tid);
    try {
      if (isFree && scheduler.isWorking()) {
        TaskInfo info = taskInfos().apply(tid);
        scheduler.books().launched(stageId(), tasks()[info.index()].partitionId(), info.executorId());
      }
    } catch (Throwable error) {
      scheduler.broke("noting a barrier's launch", error);
    }
  }

  /** Reports a task that its executor finished. */
  void tell(TaskInfo info) {
    try {
      long took = System.currentTimeMillis() - info.launchTime();
      boolean counts = scheduler.books().succeeded(stageId(), tasks()[info.index()].partitionId(), info.executorId(), took);
      synchronized (told) {
        told.put(info.taskId(), counts);
      }
    } catch (Throwable error) {
      scheduler.broke("noting a finished task", error);
    }
  }

  @Override
  public void handleSuccessfulTask(long tid, DirectTaskResult<?> result) {
    super.handleSuccessfulTask(tid, result);
    synchronized (told) {
      told.remove(tid);
    }
  }

  @Override
  public void handleFailedTask(long tid, Enumeration.Value state, TaskFailedReason reason) {
    try {
      Option<TaskInfo> info = taskInfos().get(tid);
      if (scheduler.isWorking() && info.isDefined() && !info.get().finished()) {
        Boolean counted;
        synchronized (told) {
          counted = told.remove(tid);
        }
        int index = info.get().index();
        if (counted == null || (counted && !successful()[index])) { // else a copy of it did what it was to do
          scheduler.books().failed(stageId(), tasks()[index].partitionId(), info.get().executorId(), counted != null);
        }
      }
    } catch (Throwable error) {
      scheduler.broke("noting a failed task", error);
    }
    super.handleFailedTask(tid, state, reason);
  }

  @Override
  public void markPartitionCompleted(int partition) {
    try {
      if (scheduler.isWorking() && partitionToIndex().contains(partition)) {
        scheduler.books().done(stageId(), partition);
      }
    } catch (Throwable error) {
      scheduler.broke("noting a task of another attempt", error);
    }
    super.markPartitionCompleted(partition);
  }

  @Override
  public void executorLost(String executor, String host, ExecutorLossReason reason) {
    boolean[] before = successful().clone();
    super.executorLost(executor, host, reason);
    try {
      List<Integer> lost = new ArrayList<>();
      for (int index = 0; index < before.length; index++) {
        if (before[index] && !successful()[index]) {
          lost.add(tasks()[index].partitionId());
        }
      }
      if (scheduler.isWorking() && !lost.isEmpty()) {
        scheduler.books().undone(stageId(), lost);
      }
    } catch (Throwable error) {
      scheduler.broke("noting a lost executor", error);
    }
  }
}
