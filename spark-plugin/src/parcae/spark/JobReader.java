package parcae.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.scheduler.ActiveJob;
import org.apache.spark.scheduler.DAGScheduler;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.TaskSet;
import scala.Option;
import scala.collection.Iterator;

/** Reads a job's DAG off Spark's DAG scheduler, on whose own thread `submitTasks` runs. */
final class JobReader {
  private final Books books;
  private final String jobKey;

  JobReader(Books books, String jobKey) {
    this.books = books;
    this.jobKey = jobKey;
  }

  static String queryKey(String execution) {
    return "query " + execution;
  }

  /** Tells the books of the task set's job, where they do not know how it stands, and that the stage can run. */
  void read(DAGScheduler scheduler, TaskSet taskSet) {
    if (isPipelined(taskSet)) {
      return; // it runs together with its parents: Spark's own business
    }
    int sparkJob = taskSet.priority();
    if (!books.knowsStage(taskSet.stageId()) || taskSet.stageAttemptId() > 0) { // again: more than its output may be lost
      Option<ActiveJob> active = scheduler.jobIdToActiveJob().get(sparkJob);
      if (active.isDefined()) {
        books.jobSeen(shape(scheduler, active.get(), taskSet), System.currentTimeMillis());
      }
    }
    books.submitted(taskSet.stageId(), taskSet.stageAttemptId(), taskSet.tasks().length);
  }

  private Books.JobShape shape(DAGScheduler scheduler, ActiveJob job, TaskSet taskSet) {
    Properties properties = taskSet.properties();
    String execution = Names.get(properties, "spark.sql.execution.root.id");
    if (execution.isEmpty()) {
      execution = Names.get(properties, "spark.sql.execution.id");
    }
    boolean isQuery = !execution.isEmpty();
    String key = isQuery ? queryKey(execution) : "job " + job.jobId();
    String name = Names.of(properties, jobKey, String.valueOf(job.finalStage().name()));
    Map<Integer, Books.StageShape> stages = new LinkedHashMap<>();
    visit(scheduler, job.finalStage(), key, taskSet.stageId(), stages);
    return new Books.JobShape(job.jobId(), key, name, isQuery, new ArrayList<>(stages.values()));
  }

  /**
   * Adds the stages that the last one waits for, and itself, parents before children. A stage that waits for one of another job
   * is left out until it is submitted. Without recursion: a job may have thousands of stages in a row.
   */
  private void visit(DAGScheduler scheduler, Stage last, String key, int submitted, Map<Integer, Books.StageShape> found) {
    Map<Integer, Boolean> isOwn = new HashMap<>(); // whether all that a stage waits for is this job's own
    Deque<Stage> open = new ArrayDeque<>();
    open.push(last);
    while (!open.isEmpty()) {
      Stage stage = open.peek();
      if (isOwn.containsKey(stage.id())) {
        open.pop();
        continue;
      }
      int missing = stage.findMissingPartitions().size();
      if (missing == 0) {
        isOwn.put(stage.id(), true); // its output is there; what came before it does not matter
        continue;
      }
      boolean isReady = true;
      List<Integer> parents = new ArrayList<>();
      for (Iterator<Stage> all = stage.parents().iterator(); all.hasNext(); ) {
        Stage parent = all.next();
        parents.add(parent.id());
        if (!isOwn.containsKey(parent.id())) {
          open.push(parent);
          isReady = false;
        }
      }
      if (isReady) {
        open.pop();
        String owner = books.ownerOf(stage.id());
        boolean own = owner == null ? parents.stream().allMatch(isOwn::get) : owner.equals(key);
        isOwn.put(stage.id(), own);
        if (own || stage.id() == submitted) {
          boolean isRunning = scheduler.runningStages().contains(stage);
          found.put(stage.id(), new Books.StageShape(stage.id(), stage.numTasks(), missing, isRunning, parents));
        }
      }
    }
  }

  /** Newer Sparks run stages of real-time streams together; older ones have no such thing. */
  private static boolean isPipelined(TaskSet taskSet) {
    try {
      return (Boolean) TaskSet.class.getMethod("isPipelined").invoke(taskSet);
    } catch (ReflectiveOperationException error) {
      return false;
    }
  }
}
