package parcae.spark.guest;

import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.spark.Resubmitted$;
import org.apache.spark.Success$;
import org.apache.spark.TaskEndReason;
import org.apache.spark.TaskKilled;
import org.apache.spark.UnknownReason$;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.resource.ResourceProfileBuilder;
import org.apache.spark.resource.TaskResourceRequests;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerResourceProfileAdded;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskLocality;
import org.apache.spark.scheduler.cluster.ExecutorInfo;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;
import scala.Option;
import scala.collection.immutable.List$;
import scala.collection.immutable.Seq;

/** What followers hear of Spark's events. */
final class GuestListenerTest {
  /** What a follower hears, and the listener that tells it. */
  private static final class Heard {
    private final List<String> heard = new ArrayList<>();
    private final List<String> cores = new ArrayList<>();
    private final List<Integer> listed = new ArrayList<>();
    private final List<String> names = new ArrayList<>();
    private final GuestListener listener;

    Heard(String jobKey) {
      Follower follower = (Follower) Proxy.newProxyInstance(
          getClass().getClassLoader(), new Class<?>[] {Follower.class}, (object, method, with) -> {
            boolean isTaskEnd = method.getName().equals("taskEnded");
            boolean isCores = method.getName().equals("coresChanged");
            boolean isQueryEnd = method.getName().equals("executionEnded");
            Object said = isTaskEnd ? with[2] : isQueryEnd ? with[1] : isCores ? with[0] : null;
            String what = said == null ? "" : " " + said;
            boolean isOfCores = method.getName().equals("taskHeld");
            isOfCores |= method.getName().equals("taskReleased");
            if (isOfCores) {
              cores.add(method.getName() + " " + with[2]);
            } else {
              heard.add(method.getName() + what);
            }
            if (method.getName().equals("jobStarted")) {
              Follower.StartedJob job = (Follower.StartedJob) with[0];
              job.stages.forEach(stage -> listed.add(stage.id));
              names.addAll(job.givenNames);
              names.add(job.plainName);
            }
            return null;
          });
      listener = new GuestListener(new Guest("a.Plugin"), null, List.of(follower), jobKey, 1);
    }

    void start(boolean isCopy) {
      listener.onTaskStart(new SparkListenerTaskStart(0, 0, task(isCopy)));
    }

    void end(boolean isCopy, TaskEndReason reason) {
      TaskInfo task = task(isCopy);
      task.markFinished(org.apache.spark.TaskState.FINISHED(), 10);
      listener.onTaskEnd(new SparkListenerTaskEnd(0, 0, "ResultTask", reason, task, null, null));
    }
  }

  private static <T> scala.collection.immutable.List<T> none() {
    return List$.MODULE$.<T>empty();
  }

  private static TaskInfo task(boolean isCopy) {
    return new TaskInfo(1, 0, 0, 0, 0, "1", "host", TaskLocality.ANY(), isCopy);
  }

  private static TaskKilled killed(String why) {
    return new TaskKilled(why, none(), none(), none());
  }

  private static StageInfo stage(int id) {
    return stage(id, 0);
  }

  private static StageInfo stage(int id, int profile) {
    return new StageInfo(
        id, 0, "stage", 2, none(), none(), "", null, none(), Option.empty(), profile, false, 0);
  }

  @Test
  void copies() {
    Heard one = new Heard("");
    one.start(false);
    one.start(true);
    one.end(true, Success$.MODULE$);
    one.end(false, killed("another attempt succeeded"));
    Check.same(one.heard, List.of("taskStarted", "taskEnded true"), "the copy is faster");
    List<String> both = List.of("taskHeld 1.0", "taskHeld 1.0", "taskReleased 1.0");
    Check.same(one.cores.subList(0, 3), both, "every copy holds a core");
    Check.same(one.cores.size(), 4, "and each gives it back");
    one.heard.clear();
    one.end(false, Success$.MODULE$);
    one.end(true, killed("another attempt succeeded"));
    one.end(true, UnknownReason$.MODULE$);
    Check.same(one.heard, List.of("taskEnded true"), "the copy is slower, or fails");
    one.heard.clear();
    one.end(false, killed("Stage cancelled"));
    one.end(false, UnknownReason$.MODULE$);
    Check.same(one.heard, List.of("taskEnded false", "taskEnded false"), "ends without success");
  }

  @Test
  void lostOutput() {
    Heard one = new Heard("");
    one.end(false, Success$.MODULE$);
    one.end(false, Resubmitted$.MODULE$);
    Check.same(one.heard, List.of("taskEnded true", "taskLost"), "the task is to run again");
    Check.same(one.cores, List.of("taskReleased 1.0"), "it has given its core back once");
  }

  /** The end of a SQL execution; newer Sparks have more fields, which may be empty. */
  private static SparkListenerSQLExecutionEnd executionEnd(long id) throws Exception {
    Constructor<?> of = SparkListenerSQLExecutionEnd.class.getConstructors()[0];
    Object[] fields = new Object[of.getParameterCount()];
    Arrays.fill(fields, Option.empty());
    fields[0] = id;
    fields[1] = 0L;
    return (SparkListenerSQLExecutionEnd) of.newInstance(fields);
  }

  @Test
  void failures() throws Exception {
    Heard one = new Heard("");
    SparkListenerSQLExecutionEnd end = executionEnd(5);
    one.listener.onOtherEvent(end);
    end.executionFailure_$eq(Option.apply(new IllegalStateException("cancelled")));
    one.listener.onOtherEvent(end);
    Check.same(one.heard, List.of("executionEnded true", "executionEnded false"), "ends of SQL");
  }

  @Test
  void stages() {
    Heard one = new Heard("");
    Seq<StageInfo> infos = GuestListenerTest.<StageInfo>none()
        .$colon$colon(stage(31)).$colon$colon(stage(30)).$colon$colon(stage(32));
    one.listener.onJobStart(new SparkListenerJobStart(7, 0, infos, new Properties()));
    Check.same(one.listed, List.of(30, 31, 32), "stages in order");
  }

  /** The names of a job with these properties (name, value, ...), the plain one last. */
  private static List<String> names(String jobKey, String... properties) {
    Properties given = new Properties();
    for (int i = 0; i < properties.length; i += 2) {
      given.setProperty(properties[i], properties[i + 1]);
    }
    Heard one = new Heard(jobKey);
    one.listener.onJobStart(new SparkListenerJobStart(7, 0, none(), given));
    return one.names;
  }

  @Test
  void settings() {
    String own = GuestListener.NAME_PROPERTY;
    Check.same(names("my.key", own, "my.key"), List.of("unnamed"), "the setting in SQL");
    Check.same(
        names("my.key", own, "my.key", "my.key", "a"), List.of("a", "a"), "the property it names");
    Check.same(
        names("my.key", own, "b", "my.key", "a"), List.of("b", "a", "a"), "the user's property");
    Check.same(names("", own, "b"), List.of("b", "unnamed"), "without the setting");
    Check.same(names(own, own, own), List.of("unnamed"), "a setting that names itself, in SQL");
    Check.same(names(own, own, "b"), List.of("b", "b", "b"), "and outside");
    String dbt = "/* {\"node_id\": \"model.a.b\"} */ select 1";
    Check.same(
        names("", own, "b", "spark.job.description", dbt), List.of("b", "model.a.b", "model.a.b"),
        "a statement of dbt");
  }

  @Test
  void failedStages() {
    Heard one = new Heard("");
    StageInfo failed = stage(30);
    failed.stageFailed("a task could not fetch the output of a parent");
    one.listener.onStageCompleted(new SparkListenerStageCompleted(failed));
    Check.same(one.heard, List.of(), "an attempt that failed");
    one.listener.onStageCompleted(new SparkListenerStageCompleted(stage(30)));
    Check.same(one.heard, List.of("stageCompleted"), "the next one");
  }

  @Test
  void lostEnds() {
    LostEnds ends = new LostEnds();
    ends.started(1);
    ends.started(2);
    Check.same(ends.findLost(id -> false), List.of(), "one check is not enough");
    ends.seen(1);
    Check.same(ends.findLost(id -> false), List.of(2L), "a job that sends events runs");
    Check.same(ends.findLost(id -> false), List.of(1L), "until it sends none");
  }

  @Test
  void lostTasks() {
    Heard one = new Heard("");
    Seq<StageInfo> infos = GuestListenerTest.<StageInfo>none().$colon$colon(stage(0));
    one.listener.onJobStart(new SparkListenerJobStart(7, 0, infos, new Properties()));
    one.heard.clear();
    one.start(false);
    one.start(false);
    Check.same(
        one.heard, List.of("stageSubmitted", "taskStarted", "taskStarted"), "a stage that runs");
    one.heard.clear();
    one.end(false, Success$.MODULE$);
    one.end(false, Success$.MODULE$); // the same task again
    one.listener.onStageCompleted(new SparkListenerStageCompleted(stage(0)));
    Check.same(
        one.heard,
        List.of("taskEnded true", "taskEnded true", "taskEnded true", "stageCompleted"),
        "one of two tasks has ended without an event");
    one.heard.clear();
    one.listener.onJobStart(new SparkListenerJobStart(8, 0, infos, new Properties()));
    one.heard.clear();
    one.listener.onStageCompleted(new SparkListenerStageCompleted(stage(0)));
    Check.same(
        one.heard,
        List.of("stageSubmitted", "taskEnded true", "taskEnded true", "stageCompleted"),
        "only the end of a stage has come");
  }

  @Test
  void lostExecutors() {
    Heard one = new Heard("");
    for (String id : List.of("1", "2")) {
      ExecutorInfo info =
          new ExecutorInfo("host", 4, scala.collection.immutable.Map$.MODULE$.empty());
      one.listener.onExecutorAdded(new SparkListenerExecutorAdded(0, id, info));
    }
    one.heard.clear();
    one.listener.keepExecutors(List.of("1", "2", "3"));
    Check.same(one.heard, List.of(), "executors that Spark still has");
    one.listener.keepExecutors(List.of("2"));
    Check.same(one.heard, List.of("coresChanged 4"), "one whose end event was dropped");
  }

  @Test
  void profiles() {
    Heard one = new Heard("");
    List<Integer> ids = new ArrayList<>();
    for (int cpus = 1; cpus <= 2; cpus++) {
      ResourceProfile profile =
          new ResourceProfileBuilder().require(new TaskResourceRequests().cpus(cpus)).build();
      one.listener.onResourceProfileAdded(new SparkListenerResourceProfileAdded(profile));
      ids.add(profile.id());
      scala.collection.immutable.Map<String, String> empty =
          scala.collection.immutable.Map$.MODULE$.empty();
      ExecutorInfo info = new ExecutorInfo(
          "host", 4, empty, empty, scala.collection.immutable.Map$.MODULE$.empty(), profile.id());
      one.listener.onExecutorAdded(new SparkListenerExecutorAdded(0, "of " + cpus, info));
    }
    Check.same(one.heard, List.of("coresChanged 4", "coresChanged 6"), "tasks of 1 and 2 cores");
    Seq<StageInfo> infos = GuestListenerTest.<StageInfo>none().$colon$colon(stage(0, ids.get(1)));
    one.listener.onJobStart(new SparkListenerJobStart(7, 0, infos, new Properties()));
    one.start(false);
    Check.same(one.cores, List.of("taskHeld 2.0"), "a task of two cores");
  }
}
