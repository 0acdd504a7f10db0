package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
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

/** Tells the planner what happens, on a thread of its own queue, and puts its orders in force. */
final class GuestListener extends SparkListener {
  /** Local property with which a user names the jobs of a thread. */
  static final String NAME_PROPERTY = "spark.parcae.jobKey";

  private static final long PAUSE_NS = 50_000_000L;
  /** How often it looks for what has ended unheard. */
  private static final long LOOK_NS = 10_000_000_000L;

  private final Guest guest;
  private final SparkContext context;
  private final Planner planner;
  private final String jobKey;
  private final Trace trace;
  private final LostEnds jobs = new LostEnds();
  private final LostEnds executions = new LostEnds();
  private long plannedNs = System.nanoTime() - PAUSE_NS;
  private long lookedNs = System.nanoTime();

  /** With a job key, jobs are named by that property. */
  GuestListener(
      Guest guest, SparkContext context, Planner planner, String jobKey, Trace trace) {
    this.guest = guest;
    this.context = context;
    this.planner = planner;
    this.jobKey = jobKey;
    this.trace = trace;
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    planAfter("noting the start of a job", () -> {
      jobs.started(event.jobId());
      planner.jobStarted(started(event));
    });
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    planAfter("noting the end of a job", () -> {
      jobs.ended(event.jobId());
      planner.jobEnded(event.jobId(), event.jobResult() == JobSucceeded$.MODULE$);
    });
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    planAfter("noting a stage that runs", () -> {
      StageInfo info = event.stageInfo();
      planner.stageSubmitted(info.stageId(), info.attemptNumber(), info.numTasks());
    });
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    planAfter("noting the end of a stage", () ->
        planner.stageCompleted(event.stageInfo().stageId()));
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    guest.attempt("noting the start of a task", () ->
        planner.taskStarted(event.stageId(), event.stageAttemptId()));
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    guest.attempt("noting the end of a task", () -> {
      boolean isSuccess = event.reason() == Success$.MODULE$;
      double tookMs = isSuccess ? event.taskInfo().duration() : 0;
      planner.taskEnded(event.stageId(), event.stageAttemptId(), isSuccess, tookMs);
      if (System.nanoTime() - plannedNs >= PAUSE_NS) {
        plan();
      }
    });
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof SparkListenerSQLExecutionStart) {
      SparkListenerSQLExecutionStart start = (SparkListenerSQLExecutionStart) event;
      guest.attempt("noting the start of a query", () -> {
        executions.started(start.executionId());
        String execution = String.valueOf(start.executionId());
        planner.executionStarted(execution, start.physicalPlanDescription());
      });
    } else if (event instanceof SparkListenerSQLExecutionEnd) {
      long execution = ((SparkListenerSQLExecutionEnd) event).executionId();
      planAfter("noting the end of a query", () -> {
        executions.ended(execution);
        planner.executionEnded(String.valueOf(execution));
      });
    }
  }

  private void planAfter(String what, Guest.Action action) {
    guest.attempt(what, () -> {
      action.run();
      plan();
    });
  }

  private void plan() {
    if (System.nanoTime() - lookedNs >= LOOK_NS) {
      endUnheard();
      lookedNs = System.nanoTime();
    }
    Order order = planner.plan();
    guest.setOrder(order);
    trace.write(order, planner::labelOf);
    plannedNs = System.nanoTime();
  }

  private void endUnheard() {
    Set<Long> active = new HashSet<>();
    for (int job : context.statusTracker().getActiveJobIds()) {
      active.add((long) job);
    }
    jobs.look(active::contains).forEach(job -> planner.jobEnded(job.intValue(), false));
    executions.look(each -> SQLExecution.getQueryExecution(each) != null)
        .forEach(each -> planner.executionEnded(String.valueOf(each)));
  }

  private Planner.StartedJob started(SparkListenerJobStart event) {
    Properties properties = event.properties();
    List<Planner.ListedStage> stages = new ArrayList<>();
    String lastStage = "";
    for (Iterator<?> all = event.stageInfos().iterator(); all.hasNext(); ) {
      StageInfo info = (StageInfo) all.next();
      stages.add(new Planner.ListedStage(info.stageId(), info.numTasks(), parents(info)));
      lastStage = String.valueOf(info.name());
    }
    String query = Order.queryOf(properties, event.jobId());
    String execution = Names.get(properties, "spark.sql.execution.id");
    return new Planner.StartedJob(
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
