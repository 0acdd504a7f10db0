package parcae.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.scheduler.ExecutorLossReason;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;
import scala.Enumeration;
import scala.Option;
import scala.Tuple3;

/** A task set whose tasks are launched while its stage has a free slot. Barrier task sets and speculative copies are Spark's own. */
final class ParcaeTaskSetManager extends TaskSetManager {
  private final ParcaeScheduler scheduler;
  private final boolean isFree;
  private final java.util.Set<Long> told = new java.util.HashSet<>(); // finished tasks that were reported

  ParcaeTaskSetManager(ParcaeScheduler scheduler, TaskSet taskSet, int maxTaskFailures) {
    super(scheduler, taskSet, maxTaskFailures, scheduler.healthTrackerOpt(), new SystemClock());
    this.scheduler = scheduler;
    this.isFree = isBarrier();
  }

  @Override
  public Option<Tuple3<Object, Enumeration.Value, Object>> dequeueTaskHelper(
      String executor, String host, Enumeration.Value locality, boolean isSpeculative) {
    if (scheduler == null || !scheduler.isWorking()) {
      return super.dequeueTaskHelper(executor, host, locality, isSpeculative);
    }
    try {
      if (!isSpeculative && !isFree && !scheduler.books().mayLaunch(stageId())) {
        return Option.empty();
      }
    } catch (Throwable error) {
      scheduler.broke("the question whether a task may run", error);
    }
    Option<Tuple3<Object, Enumeration.Value, Object>> found = super.dequeueTaskHelper(executor, host, locality, isSpeculative);
    try {
      if (found.isDefined()) {
        scheduler.books().launched(stageId(), tasks()[(Integer) found.get()._1()].partitionId());
      }
    } catch (Throwable error) {
      scheduler.broke("noting a launch", error);
    }
    return found;
  }

  /** Reports a task that its executor finished. */
  void tell(TaskInfo info) {
    try {
      synchronized (told) {
        told.add(info.taskId());
      }
      long took = System.currentTimeMillis() - info.launchTime();
      scheduler.books().succeeded(stageId(), tasks()[info.index()].partitionId(), took);
    } catch (Throwable error) {
      scheduler.broke("noting a finished task", error);
    }
  }

  @Override
  public void handleFailedTask(long tid, Enumeration.Value state, TaskFailedReason reason) {
    try {
      Option<TaskInfo> info = taskInfos().get(tid);
      if (scheduler.isWorking() && info.isDefined() && !info.get().finished()) {
        boolean wasCounted;
        synchronized (told) {
          wasCounted = told.remove(tid);
        }
        scheduler.books().failed(stageId(), tasks()[info.get().index()].partitionId(), wasCounted);
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
