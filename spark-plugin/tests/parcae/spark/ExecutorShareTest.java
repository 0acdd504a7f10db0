package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.apache.spark.SparkConf;

/**
 * A shared cluster's books by themselves, without an application or a service. Ends with an error where something is not as it
 * must be.
 */
final class ExecutorShareTest {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long LATER_MS = 3600_000;
  private static long seq;

  private ExecutorShareTest() {}

  public static void main(String[] args) throws Exception {
    aMoveAsksForAnExecutorWhichThenWorksForItsStageOnly();
    aReleaseGivesTheSlotsExecutorBackOrCancelsTheMove();
    anExecutorThatIsHereMovesAtOnce();
    aTaskKeepsItsExecutorWhenItsSlotIsTaken();
    anExecutorThatDiesIsToldBySync();
    syncTellsWhatRunsWhereAndGivesBackWhatOthersHave();
    withoutTheServiceItKeepsWhatItHasAndAsksForItsFallback();
    settingsThatCannotBeAreRefused();
    System.out.println("ok");
  }

  private static void aMoveAsksForAnExecutorWhichThenWorksForItsStageOnly() throws Exception {
    ExecutorShare share = synced(4);
    obey(share, "move 2 0", "move 3 0");
    same(share.wanted(0).target, 2, "executors wanted");
    share.executorAdded("e0", 1);
    same(share.mayLaunch(0, "e0"), false, "a task before the slot was told to start");
    same(events(share), "[{kind=slot_arrived, slot=2}]", "the slot that waits longest comes first");
    obey(share, "start 2 0");
    same(share.mayLaunch(0, "e0"), true, "a task of the slot's stage");
    same(share.mayLaunch(1, "e0"), false, "a task of another stage");
    share.launched(0, 0, "e0");
    same(share.mayLaunch(0, "e0"), false, "a second task at once");
    share.succeeded(0, 0, "e0", 7);
    same(events(share), "[{kind=task_finished, slot=2, job_id=0, stage_id=0, duration_ms=7}]", "the end of a task");
    same(share.mayLaunch(0, "e0"), true, "the next task");
    same(share.wanted(0).target, 2, "executors wanted");
  }

  private static void aReleaseGivesTheSlotsExecutorBackOrCancelsTheMove() throws Exception {
    ExecutorShare share = synced(4);
    obey(share, "move 0 0", "move 1 0");
    share.executorAdded("e0", 1);
    events(share);
    push(share, "release 0", "release 1");
    same(share.wanted(0).target, 0, "executors wanted");
    same(share.wanted(0).leaving, List.of("e0"), "executors that go");
    same(share.mayLaunch(0, "e0"), false, "a task on an executor that goes");
    share.executorAdded("e1", 1); // asked for before the move was cancelled
    same(share.wanted(0).leaving, List.of("e0", "e1"), "executors that go");
    share.executorRemoved("e0");
    share.executorRemoved("e1");
    same(share.isDirty(), false, "whether the service is to hear of executors that were given back");
    obey(share, "move 0 0");
    same(share.wanted(0).target, 1, "executors wanted");
  }

  private static void anExecutorThatIsHereMovesAtOnce() throws Exception {
    ExecutorShare share = working(4, 1);
    obey(share, "idle 0");
    same(share.mayLaunch(0, "e0"), false, "a task of the stage that it worked for");
    obey(share, "move 0 1");
    same(events(share), "[{kind=slot_arrived, slot=0}]", "what is told");
    obey(share, "start 0 1");
    same(share.mayLaunch(1, "e0"), true, "a task of the other stage");
    same(share.wanted(0).target, 1, "executors wanted");
  }

  private static void aTaskKeepsItsExecutorWhenItsSlotIsTaken() throws Exception {
    ExecutorShare share = working(4, 2);
    share.launched(0, 0, "e0");
    push(share, "release 0"); // the service believes that the other slot took the last task
    same(share.wanted(0).leaving, List.of("e1"), "the free executor goes");
    share.succeeded(0, 0, "e0", 5);
    same(events(share), "[{kind=task_finished, slot=1, job_id=0, stage_id=0, duration_ms=5}]", "the end of the task");
    same(share.isDirty(), false, "whether the two sides differ");
    share = working(4, 2);
    share.launched(0, 0, "e0");
    obey(share, "start 0 1");
    same(share.mayLaunch(1, "e1"), true, "a task of the new stage, on the executor that is free");
    same(share.mayLaunch(1, "e0"), false, "a task on the busy one");
    share.succeeded(0, 0, "e0", 5);
    same(events(share), "[{kind=task_finished, slot=1, job_id=0, stage_id=0, duration_ms=5}]", "the end of the task");
    same(share.isDirty(), false, "whether the two sides differ");
  }

  private static void anExecutorThatDiesIsToldBySync() throws Exception {
    ExecutorShare share = working(3, 2);
    share.launched(0, 0, "e1");
    share.executorRemoved("e1");
    share.failed(0, 0, "e1", false);
    same(share.isDirty(), true, "whether the service is to hear of it");
    same(slots(share.takeSync(++seq, 5)), "0 idle 0, 1 idle, 2 idle", "slots");
    same(share.wanted(0).target, 1, "executors wanted");
  }

  private static void syncTellsWhatRunsWhereAndGivesBackWhatOthersHave() throws Exception {
    ExecutorShare share = working(5, 3);
    share.launched(0, 0, "e1");
    obey(share, "move 4 1");
    share.needSync("a test");
    same(slots(share.takeSync(++seq, 5)), "0 idle 0, 1 running 0/0, 2 idle 0, 3 idle, 4 moving 1/1", "slots");
    push(share, "release 0"); // said before the service heard the sync: void
    same(share.wanted(0).leaving, List.of(), "executors that go");
    obey(share, "start 0 1");
    same(share.wanted(0).leaving, List.of("e2"), "the one that no command is for");
    same(share.mayLaunch(1, "e0"), true, "a task of the stage of the one that a command is for");
    share.executorAdded("e3", 1);
    same(events(share), "[{kind=slot_arrived, slot=4}]", "what is told");
  }

  private static void withoutTheServiceItKeepsWhatItHasAndAsksForItsFallback() throws Exception {
    ExecutorShare share = working(6, 1);
    obey(share, "move 3 0");
    share.setObeying(false);
    long now = System.currentTimeMillis();
    same(share.wanted(now).target, 1, "executors wanted at first");
    same(share.wanted(now + LATER_MS).target, 3, "executors wanted after a while");
    share.executorAdded("e7", 1);
    same(share.mayLaunch(1, "e0") && share.mayLaunch(0, "e7"), true, "any task anywhere");
    share.launched(0, 0, "e7");
    String told = slots(share.takeSync(++seq, 5));
    same(told.startsWith("0 idle 0, ") && told.contains(" running 0/0") && !told.contains("moving"), true, told);
    share.setObeying(true);
    obey(share, "idle 0");
    same(share.wanted(now + LATER_MS).target, 2, "executors wanted when the service is back");
  }

  private static void settingsThatCannotBeAreRefused() {
    SparkConf right = new SparkConf(false)
        .set("spark.master", "spark-parcae://a:7077")
        .set("spark.parcae.scope", "cluster")
        .set("spark.parcae.executors", "5")
        .set("spark.executor.cores", "1");
    same(new Settings(right).executors, 5, "executors of the cluster");
    same(new Settings(right).fallbackExecutors, 3, "executors without the service");
    String[][] wrong = {
      {"spark.parcae.scope", "all"},
      {"spark.parcae.executors", "0"},
      {"spark.master", "local-parcae[4]"},
      {"spark.executor.cores", "4"},
      {"spark.task.cpus", "2"},
      {"spark.dynamicAllocation.enabled", "true"},
    };
    for (String[] setting : wrong) {
      String said = "nothing";
      try {
        new Settings(right.clone().set(setting[0], setting[1]));
      } catch (IllegalArgumentException error) {
        said = error.getMessage();
      }
      String word = setting[0].equals("spark.master") ? "master" : setting[0];
      same(said.contains(word), true, setting[0] + "=" + setting[1] + " and what was said: " + said);
    }
  }

  // ---- how it is said -------------------------------------------------------------------------------------------------

  /** Two jobs of a stage each, stage 0 with four tasks and stage 1 with three; the service was told, and obeyed. */
  private static ExecutorShare synced(int numSlots) throws Exception {
    ExecutorShare share = new ExecutorShare(numSlots, numSlots / 2);
    for (int job = 0; job < 2; job++) {
      int tasks = 4 - job;
      Books.StageShape stage = new Books.StageShape(job, tasks, tasks, false, List.of());
      share.jobSeen(new Books.JobShape(job, "job " + job, "a job", false, List.of(stage)), 1);
      share.submitted(job, 0, tasks);
    }
    share.takeSync(++seq, 1);
    share.setObeying(true);
    obey(share);
    return share;
  }

  /** The same, with so many executors that work for stage 0. */
  private static ExecutorShare working(int numSlots, int numExecutors) throws Exception {
    ExecutorShare share = synced(numSlots);
    for (int slot = 0; slot < numExecutors; slot++) {
      obey(share, "move " + slot + " 0");
      share.executorAdded("e" + slot, 1);
      obey(share, "start " + slot + " 0");
    }
    events(share);
    return share;
  }

  private static void obey(ExecutorShare share, String... words) throws Exception {
    share.obey(commands(seq, words));
  }

  private static void push(ExecutorShare share, String... words) throws Exception {
    share.obey(commands(-1, words));
  }

  private static Wire.Commands commands(long seq, String... words) throws Exception {
    List<String> told = new ArrayList<>();
    for (String word : words) {
      String[] part = word.split(" ");
      String to = part.length > 2 ? ",\"job_id\":" + part[2] + ",\"stage_id\":" + part[2] : "";
      told.add("{\"kind\":\"" + part[0] + "\",\"slot\":" + part[1] + to + "}");
    }
    String number = seq < 0 ? "null" : String.valueOf(seq);
    String text = "{\"type\":\"commands\",\"seq\":" + number + ",\"commands\":[" + String.join(",", told) + "]}";
    return Wire.commands(JSON.readTree(text));
  }

  private static String events(ExecutorShare share) {
    return share.takeEvents().toString();
  }

  private static String slots(java.util.Map<String, Object> sync) {
    List<String> told = new ArrayList<>();
    JsonNode tree = JSON.valueToTree(sync);
    for (JsonNode slot : tree.path("slots")) {
      String job = slot.has("job_id") ? " " + slot.path("job_id").asText() : "";
      String stage = slot.has("stage_id") ? "/" + slot.path("stage_id").asText() : "";
      told.add(slot.path("slot").asText() + " " + slot.path("state").asText("idle") + job + stage);
    }
    return String.join(", ", told);
  }

  private static void same(Object found, Object expected, String what) {
    if (!Objects.equals(found, expected)) {
      throw new AssertionError(what + ": " + found + ", not " + expected);
    }
  }
}
