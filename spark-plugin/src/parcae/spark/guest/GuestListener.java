package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart;
import parcae.spark.Names;
import scala.collection.Iterator;

/** Tells followers what happens, on the thread of a queue of its own. */
final class GuestListener extends SparkListener {
  /** Local property with which a user names the jobs of a thread. */
  static final String NAME_PROPERTY = "spark.parcae.jobKey";

  /** How often it looks for what has ended unheard. */
  private static final long LOOK_NS = 10_000_000_000L;

  private final Guest guest;
  private final SparkContext context;
  private final List<Follower> followers;
  private final String jobKey;
  private final int taskCores;
  private final Map<String, Integer> tasksOfExecutor = new HashMap<>();
  private final LostEnds jobs = new LostEnds();
  private final LostEnds executions = new LostEnds();
  private long lookedNs = System.nanoTime();

  /**
   * With a job key, jobs are named by that property.
   *
   * @param taskCores cores that a task takes
   */
  GuestListener(
      Guest guest,
      SparkContext context,
      List<Follower> followers,
      String jobKey,
      int taskCores) {
    this.guest = guest;
    this.context = context;
    this.followers = followers;
    this.jobKey = jobKey;
    this.taskCores = taskCores;
  }

  @Override
  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    guest.attempt("noting an executor", () -> {
      tasksOfExecutor.put(event.executorId(), event.executorInfo().totalCores() / taskCores);
      tell(follower -> follower.coresChanged(cores()));
    });
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    guest.attempt("noting the end of an executor", () -> {
      tasksOfExecutor.remove(event.executorId());
      tell(follower -> follower.coresChanged(cores()));
    });
  }

  private void tell(Consumer<Follower> event) {
    followers.forEach(event);
  }

  private int cores() {
    int cores = 0;
    for (int tasks : tasksOfExecutor.values()) {
      cores += tasks;
    }
    return cores;
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    guest.attempt("noting the start of a job", () -> {
      endUnheard();
      jobs.started(event.jobId());
      Follower.StartedJob job = started(event);
      tell(follower -> follower.jobStarted(job));
    });
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    guest.attempt("noting the end of a job", () -> {
      endUnheard();
      jobs.ended(event.jobId());
      boolean isSuccess = event.jobResult() == JobSucceeded$.MODULE$;
      tell(follower -> follower.jobEnded(event.jobId(), isSuccess));
    });
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    guest.attempt("noting a stage that runs", () -> {
      endUnheard();
      StageInfo info = event.stageInfo();
      int attempt = info.attemptNumber();
      tell(follower -> follower.stageSubmitted(info.stageId(), attempt, info.numTasks()));
    });
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    guest.attempt("noting the end of a stage", () -> {
      int stage = event.stageInfo().stageId();
      tell(follower -> follower.stageCompleted(stage));
    });
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    guest.attempt("noting the start of a task", () ->
        tell(follower -> follower.taskStarted(event.stageId(), event.stageAttemptId())));
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    guest.attempt("noting the end of a task", () -> {
      boolean isSuccess = event.reason() == Success$.MODULE$;
      double tookMs = isSuccess ? event.taskInfo().duration() : 0;
      int attempt = event.stageAttemptId();
      tell(follower -> follower.taskEnded(event.stageId(), attempt, isSuccess, tookMs));
    });
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof SparkListenerSQLExecutionStart) {
      SparkListenerSQLExecutionStart start = (SparkListenerSQLExecutionStart) event;
      guest.attempt("noting the start of a query", () -> {
        executions.started(start.executionId());
        String execution = String.valueOf(start.executionId());
        tell(follower ->
            follower.executionStarted(execution, start.physicalPlanDescription()));
      });
    } else if (event instanceof SparkListenerSQLExecutionEnd) {
      long execution = ((SparkListenerSQLExecutionEnd) event).executionId();
      guest.attempt("noting the end of a query", () -> {
        executions.ended(execution);
        tell(follower -> follower.executionEnded(String.valueOf(execution)));
      });
    }
  }

  /** Ends what Spark no longer runs though no event said so; looks only once in a while. */
  private void endUnheard() {
    if (System.nanoTime() - lookedNs < LOOK_NS) {
      return;
    }
    lookedNs = System.nanoTime();
    Set<Long> active = new HashSet<>();
    for (int job : context.statusTracker().getActiveJobIds()) {
      active.add((long) job);
    }
    for (long job : jobs.look(active::contains)) {
      tell(follower -> follower.jobEnded((int) job, false));
    }
    for (long each : executions.look(id -> SQLExecution.getQueryExecution(id) != null)) {
      tell(follower -> follower.executionEnded(String.valueOf(each)));
    }
  }

  private Follower.StartedJob started(SparkListenerJobStart event) {
    Properties properties = event.properties();
    List<Follower.ListedStage> stages = new ArrayList<>();
    String lastStage = "";
    for (Iterator<?> all = event.stageInfos().iterator(); all.hasNext(); ) {
      StageInfo info = (StageInfo) all.next();
      stages.add(new Follower.ListedStage(info.stageId(), info.numTasks(), parents(info)));
      lastStage = String.valueOf(info.name());
    }
    String query = Order.queryOf(properties, event.jobId());
    String execution = Names.get(properties, "spark.sql.execution.id");
    return new Follower.StartedJob(
        event.jobId(),
        query,
        execution.isEmpty() ? null : execution,
        givenNames(properties),
        Names.of(properties, jobKey, lastStage),
        stages);
  }

  private static List<Integer> parents(StageInfo info) {
    List<Integer> parents = new ArrayList<>();
    for (Iterator<?> all = info.parentIds().iterator(); all.hasNext(); ) {
      parents.add((Integer) all.next());
    }
    return parents;
  }

  /** What the user calls the job: by our local property, or by the one that the settings name. */
  private List<String> givenNames(Properties properties) {
    List<String> found = new ArrayList<>();
    for (String property : new String[] {NAME_PROPERTY, jobKey}) {
      String name = property.isEmpty() ? "" : Names.tidy(Names.get(properties, property));
      if (!name.isEmpty()) {
        found.add(name);
      }
    }
    return found;
  }
}
