package parcae.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import scala.collection.Iterator;

/** What is told to listeners a little later than it happens: executors that come and go, jobs and queries that end. */
final class ParcaeListener extends SparkListener {
  private final ParcaeScheduler scheduler;
  private final Books books;
  private final int taskCpus;
  private final Map<Integer, List<Integer>> stagesOf = new ConcurrentHashMap<>();

  ParcaeListener(ParcaeScheduler scheduler, Books books, int taskCpus) {
    this.scheduler = scheduler;
    this.books = books;
    this.taskCpus = taskCpus;
  }

  @Override
  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    safely("an executor that came", () -> books.executorAdded(event.executorId(), event.executorInfo().totalCores() / taskCpus));
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    safely("an executor that went", () -> books.executorRemoved(event.executorId()));
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    safely("a job's start", () -> {
      List<Integer> stages = new ArrayList<>();
      for (Iterator<?> ids = event.stageIds().iterator(); ids.hasNext(); ) {
        stages.add((Integer) ids.next());
      }
      stagesOf.put(event.jobId(), stages);
    });
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    safely("a job's end", () -> {
      List<Integer> stages = stagesOf.remove(event.jobId());
      Set<Integer> own = new HashSet<>(stages == null ? List.of() : stages);
      stagesOf.values().forEach(others -> others.forEach(own::remove)); // another job still needs them
      books.sparkJobEnded(event.jobId(), own, event.jobResult().equals(JobSucceeded$.MODULE$));
    });
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof SparkListenerSQLExecutionEnd) {
      SparkListenerSQLExecutionEnd end = (SparkListenerSQLExecutionEnd) event;
      safely("a query's end", () -> {
        boolean isSuccess = end.errorMessage().isEmpty() || end.errorMessage().get().isEmpty();
        books.queryEnded(JobReader.queryKey(String.valueOf(end.executionId())), isSuccess);
      });
    }
  }

  private void safely(String what, Runnable action) {
    if (scheduler.isWorking()) {
      try {
        action.run();
      } catch (Throwable error) {
        scheduler.broke(what, error);
      }
    }
  }
}
