package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.spark.Resubmitted$;
import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.TaskEndReason;
import org.apache.spark.TaskKilled;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.resource.TaskResourceRequest;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerResourceProfileAdded;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.cluster.ExecutorInfo;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlanInfo;
import org.apache.spark.sql.execution.ui.SparkListenerDriverAccumUpdates;
import org.apache.spark.sql.execution.ui.SparkListenerSQLAdaptiveExecutionUpdate;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart;
import parcae.spark.Names;
import scala.collection.Iterator;

/** Passes Spark's events to the followers, on the thread of a separate event queue. */
final class GuestListener extends SparkListener {
  /** The local property with which a user names the jobs of a thread. */
  static final String NAME_PROPERTY = "spark.parcae.jobKey";

  /** How often the listener looks for what has ended without an event, as Spark dropped it. */
  private static final long CHECK_NS = 10_000_000_000L;

  /** What Spark gives as the reason when a copy of a task was faster. */
  private static final String FASTER_COPY = "another attempt succeeded";

  private final Guest guest;
  private final SparkContext context;
  private final List<Follower> followers;
  private final String jobKey;
  private final int taskCores;
  /** Cores that a task takes, by resource profile; of profiles that do not say it, `taskCores`. */
  private final Map<Integer, Integer> taskCoresOfProfile = new HashMap<>();
  private final Map<String, Integer> tasksOfExecutor = new HashMap<>();
  private final LostEnds jobs = new LostEnds();
  private final TaskEnds tasks = new TaskEnds();
  /** Cores that a task takes, by stage, where that is not the default. */
  private final Map<Integer, Integer> taskCoresOfStage = new HashMap<>();
  private final LostEnds executions = new LostEnds();
  /** What Spark's user interface calls the open SQL executions: the user's text or a call site. */
  private final Map<String, String> descriptions = new HashMap<>();
  private final Scans scans = new Scans();
  private long checkedNs = System.nanoTime();

  /**
   * Creates a listener.
   *
   * @param guest the plugin, which handles errors
   * @param context Spark's context
   * @param followers the receivers of events
   * @param jobKey a property by which jobs are named; empty for none
   * @param taskCores cores that a task takes, unless its resource profile says otherwise
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
  public void onResourceProfileAdded(SparkListenerResourceProfileAdded event) {
    guest.attempt("noting a resource profile", () -> {
      ResourceProfile profile = event.resourceProfile();
      TaskResourceRequest cpus = profile.taskResourcesJMap().get(ResourceProfile.CPUS());
      if (cpus != null) {
        taskCoresOfProfile.put(profile.id(), Math.max(1, (int) cpus.amount()));
      }
    });
  }

  @Override
  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    guest.attempt("noting an executor", () -> {
      ExecutorInfo info = event.executorInfo();
      int each = taskCoresOfProfile.getOrDefault(info.resourceProfileId(), taskCores);
      tasksOfExecutor.put(event.executorId(), info.totalCores() / each);
      notifyFollowers(follower -> follower.coresChanged(cores()));
    });
  }

  @Override
  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    guest.attempt("noting the end of an executor", () -> {
      tasksOfExecutor.remove(event.executorId());
      notifyFollowers(follower -> follower.coresChanged(cores()));
    });
  }

  private void notifyFollowers(Consumer<Follower> event) {
    followers.forEach(event);
  }

  /** How many tasks can run at once. */
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
      reportLostEnds();
      jobs.started(event.jobId());
      Follower.StartedJob job = started(event);
      job.stages.forEach(stage -> tasks.listed(job.id, stage.id, stage.tasks));
      notifyFollowers(follower -> follower.jobStarted(job));
    });
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    guest.attempt("noting the end of a job", () -> {
      reportLostEnds();
      jobs.ended(event.jobId());
      forget(event.jobId());
      boolean isSuccess = event.jobResult() == JobSucceeded$.MODULE$;
      notifyFollowers(follower -> follower.jobEnded(event.jobId(), isSuccess));
      guest.admission().ended(Order.JOB + event.jobId());
    });
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    guest.attempt("noting a stage that runs", () -> {
      StageInfo info = event.stageInfo();
      seen(info.stageId());
      reportLostEnds();
      int attempt = info.attemptNumber();
      tasks.submitted(info.stageId(), attempt);
      notifyFollowers(follower ->
          follower.stageSubmitted(info.stageId(), attempt, info.numTasks()));
    });
  }

  /** Makes up for the event of an attempt that was dropped, as the attempt has sent another. */
  private void submitIfUnknown(int stage, int attempt, int numTasks) {
    if (tasks.submitted(stage, attempt)) {
      guest.repaired(1);
      notifyFollowers(follower -> follower.stageSubmitted(stage, attempt, numTasks));
    }
  }

  /** Makes up for the ends of tasks that were dropped: a stage that completes has run them all. */
  private void endMissingTasks(StageInfo info) {
    int stage = info.stageId();
    int attempt = info.attemptNumber();
    submitIfUnknown(stage, attempt, info.numTasks());
    int missing = tasks.missing(stage, info.numTasks());
    if (missing > 0) {
      guest.repaired(missing);
      TaskMetrics all = info.taskMetrics(); // which Spark adds up without events
      double eachMs = all == null
          ? 0
          : (double) (all.executorRunTime() + all.executorDeserializeTime()) / info.numTasks();
      for (int i = 0; i < missing; i++) {
        notifyFollowers(follower -> follower.taskEnded(stage, attempt, true, eachMs));
      }
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    guest.attempt("noting the end of a stage", () -> {
      if (event.stageInfo().failureReason().isDefined()) {
        return; // another attempt follows, or the end of the job
      }
      int stage = event.stageInfo().stageId();
      endMissingTasks(event.stageInfo());
      notifyFollowers(follower -> follower.stageCompleted(stage));
    });
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    guest.attempt("noting the cores of a task", () -> {
      TaskInfo task = event.taskInfo();
      int stage = event.stageId();
      notifyFollowers(follower ->
          follower.taskHeld(task.taskId(), stage, coresOf(stage), task.launchTime()));
    });
    if (event.taskInfo().speculative()) {
      return; // a copy of a task that runs
    }
    guest.attempt("noting the start of a task", () -> {
      int stage = event.stageId();
      seen(stage);
      if (tasks.jobOf(stage) != null) {
        submitIfUnknown(stage, event.stageAttemptId(), tasks.listedTasks(stage));
      }
      notifyFollowers(follower -> follower.taskStarted(stage, event.stageAttemptId()));
    });
  }

  /** The cores that a task of a stage holds, in units of what a task takes by default. */
  private double coresOf(int stage) {
    return taskCoresOfStage.getOrDefault(stage, taskCores) / (double) taskCores;
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    guest.attempt("noting the cores of a task that ended", () -> {
      TaskInfo task = event.taskInfo();
      int stage = event.stageId();
      if (event.reason() != Resubmitted$.MODULE$) { // told of a task that has ended before
        notifyFollowers(follower -> follower.taskReleased(
            task.taskId(), stage, coresOf(stage), task.launchTime(), task.finishTime()));
      }
    });
    guest.attempt("noting the end of a task", () -> {
      seen(event.stageId());
      int partition = event.taskInfo().partitionId();
      if (event.reason() == Resubmitted$.MODULE$) { // its executor is lost, and its output with it
        tasks.lost(event.stageId(), partition);
        notifyFollowers(follower -> follower.taskLost(event.stageId(), event.stageAttemptId()));
        return;
      }
      boolean isSuccess = event.reason() == Success$.MODULE$;
      if (!isSuccess && (event.taskInfo().speculative() || isLateCopy(event.reason()))) {
        return; // the task's other copy runs on, or has succeeded
      }
      if (isSuccess) {
        tasks.succeeded(event.stageId(), partition);
      }
      double tookMs = isSuccess ? event.taskInfo().duration() : 0;
      int attempt = event.stageAttemptId();
      notifyFollowers(follower -> follower.taskEnded(event.stageId(), attempt, isSuccess, tookMs));
    });
  }

  /** Whether a task was stopped because a copy of it was faster. */
  private static boolean isLateCopy(TaskEndReason reason) {
    return reason instanceof TaskKilled
        && String.valueOf(((TaskKilled) reason).reason()).contains(FASTER_COPY);
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    guest.attempt("noting who runs a statement", () -> guest.persons().note(event));
    if (event instanceof SparkListenerSQLExecutionStart) {
      SparkListenerSQLExecutionStart start = (SparkListenerSQLExecutionStart) event;
      guest.attempt("noting the start of a query", () -> {
        executions.started(start.executionId());
        String execution = String.valueOf(start.executionId());
        descriptions.put(execution, start.description() == null ? "" : start.description());
        notifyFollowers(follower ->
            follower.executionStarted(execution, start.physicalPlanDescription()));
        QueryExecution query = SQLExecution.getQueryExecution(start.executionId());
        if (query != null) {
          scans.related(query);
        }
        planned(start.executionId(), start.sparkPlanInfo());
      });
    } else if (event instanceof SparkListenerSQLAdaptiveExecutionUpdate) {
      SparkListenerSQLAdaptiveExecutionUpdate update =
          (SparkListenerSQLAdaptiveExecutionUpdate) event;
      guest.attempt("noting a changed plan", () ->
          planned(update.executionId(), update.sparkPlanInfo()));
    } else if (event instanceof SparkListenerDriverAccumUpdates) {
      SparkListenerDriverAccumUpdates updates = (SparkListenerDriverAccumUpdates) event;
      guest.attempt("noting the bytes of files", () -> {
        if (scans.counted(updates)) {
          tellBytes(updates.executionId());
        }
      });
    } else if (event instanceof SparkListenerSQLExecutionEnd) {
      SparkListenerSQLExecutionEnd end = (SparkListenerSQLExecutionEnd) event;
      guest.attempt("noting the end of a query", () -> {
        executions.ended(end.executionId());
        scans.ended(end.executionId());
        String execution = String.valueOf(end.executionId());
        descriptions.remove(execution);
        boolean isSuccess = end.executionFailure().isEmpty();
        notifyFollowers(follower -> follower.executionEnded(execution, isSuccess));
        guest.admission().ended(execution);
      });
    }
  }

  private void planned(long execution, SparkPlanInfo plan) {
    scans.planned(execution, plan);
    tellBytes(execution);
  }

  private void tellBytes(long execution) {
    double bytes = scans.bytes(execution);
    notifyFollowers(follower -> follower.bytesKnown(String.valueOf(execution), bytes));
  }

  private void forget(int job) {
    tasks.jobEnded(job);
    taskCoresOfStage.keySet().removeIf(stage -> tasks.jobOf(stage) == null);
  }

  /**
   * A stage has sent an event, so its job runs, whatever Spark's status store says: that store may
   * lag behind, or may have lost the start of the job.
   */
  private void seen(int stage) {
    Integer job = tasks.jobOf(stage);
    if (job != null) {
      jobs.seen(job);
    }
  }

  /**
   * Reports the end of jobs, executions and executors whose end event was dropped; checks only
   * rarely.
   */
  private void reportLostEnds() {
    if (System.nanoTime() - checkedNs < CHECK_NS) {
      return;
    }
    checkedNs = System.nanoTime();
    Set<Long> active = new HashSet<>();
    for (int job : context.statusTracker().getActiveJobIds()) {
      active.add((long) job);
    }
    for (long job : jobs.findLost(active::contains)) {
      guest.repaired(1);
      forget((int) job);
      notifyFollowers(follower -> follower.jobEnded((int) job, false));
    }
    for (long each : executions.findLost(id -> SQLExecution.getQueryExecution(id) != null)) {
      guest.repaired(1);
      descriptions.remove(String.valueOf(each));
      scans.ended(each);
      notifyFollowers(follower -> follower.executionEnded(String.valueOf(each), true));
    }
    Set<String> present = ExecutorShare.executorsOf(context.schedulerBackend());
    if (present != null) {
      keepExecutors(present);
    }
  }

  /** Drops the executors that Spark no longer has. It has one before the event of its start. */
  void keepExecutors(Collection<String> present) {
    int before = tasksOfExecutor.size();
    if (tasksOfExecutor.keySet().retainAll(present)) {
      guest.repaired(before - tasksOfExecutor.size());
      notifyFollowers(follower -> follower.coresChanged(cores()));
    }
  }

  private Follower.StartedJob started(SparkListenerJobStart event) {
    Properties properties = event.properties();
    List<Follower.ListedStage> stages = new ArrayList<>();
    String lastStage = "";
    for (Iterator<?> all = event.stageInfos().iterator(); all.hasNext(); ) {
      StageInfo info = (StageInfo) all.next();
      stages.add(new Follower.ListedStage(info.stageId(), info.numTasks(), parents(info)));
      Integer cores = taskCoresOfProfile.get(info.resourceProfileId());
      if (cores != null && cores != taskCores) {
        taskCoresOfStage.put(info.stageId(), cores);
      }
      lastStage = String.valueOf(info.name());
    }
    // Spark lists them in any order, but numbers parents first, in every run alike.
    stages.sort(Comparator.comparingInt(stage -> stage.id));
    String query = Order.queryOf(properties, event.jobId());
    String execution = Names.get(properties, "spark.sql.execution.id");
    String description = descriptions.getOrDefault(query, "");
    return new Follower.StartedJob(
        event.jobId(),
        query,
        execution.isEmpty() ? null : execution,
        givenNames(properties, description),
        Names.of(properties, given(properties, jobKey), description, lastStage),
        stages)
        .asking(Priority.asked(properties), guest.granted(properties))
        .by(guest.persons().of(properties), guest.persons().poolOf(properties));
  }

  private static List<Integer> parents(StageInfo info) {
    List<Integer> parents = new ArrayList<>();
    for (Iterator<?> all = info.parentIds().iterator(); all.hasNext(); ) {
      parents.add((Integer) all.next());
    }
    return parents;
  }

  /** The names given to the job: by the plugin's property, by the configured one, by dbt. */
  private List<String> givenNames(Properties properties, String description) {
    List<String> names = new ArrayList<>();
    for (String property : new String[] {NAME_PROPERTY, jobKey}) {
      String name = given(properties, property);
      if (!name.isEmpty()) {
        names.add(name);
      }
    }
    String node = Names.dbtNode(properties, description);
    if (!node.isEmpty()) {
      names.add(node);
    }
    return names;
  }

  /**
   * The name in a property; empty if there is none. The value of the plugin's setting is none: in
   * SQL, Spark copies the settings into the properties, and there it has that of the plugin's.
   */
  private String given(Properties properties, String property) {
    boolean isSetting = Names.get(properties, property).equals(jobKey);
    return isSetting ? "" : Names.given(properties, property);
  }
}
