package parcae.spark.guest;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import parcae.spark.Check;

/**
 * Checks the messages that the picture makes of an application's events.
 *
 * <p>With a number of applications and a number of steps as arguments the program plays random
 * applications one after the other and prints every message. Another program then checks that
 * applying the events gives the same state.
 */
final class PictureTest {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int STAGES = 3;

  private PictureTest() {}

  private static Follower.ListedStage stage(int id, int tasks, Integer... parents) {
    return new Follower.ListedStage(id, tasks, List.of(parents));
  }

  private static Follower.StartedJob job(int id, String query, Follower.ListedStage... stages) {
    String execution = query.startsWith("job ") ? null : query;
    return new Follower.StartedJob(
        id, query, execution, List.of("mine"), "call site", List.of(stages));
  }

  private static List<?> events(Picture picture) {
    return (List<?>) picture.takeEvents(1).get("events");
  }

  private static String types(Picture picture) {
    List<Object> types = new ArrayList<>();
    events(picture).forEach(event -> types.add(((Map<?, ?>) event).get("type")));
    return types.toString();
  }

  private static Map<?, ?> only(Picture picture) {
    List<?> events = events(picture);
    Check.same(events.size(), 1, "events");
    return (Map<?, ?>) events.get(0);
  }

  private static Picture listening() {
    Picture picture = new Picture(() -> { });
    picture.needState();
    picture.takeState(1);
    return picture;
  }

  private static void aQuery() {
    Picture picture = listening();
    String plan = "* Filter (2)\n\n(2) Filter\nCondition : (a#1 > 3)\n";
    picture.executionStarted("5", plan);
    picture.jobStarted(job(1, "5", stage(1, 4), stage(2, 2, 1)));
    Map<?, ?> arrived = (Map<?, ?>) only(picture).get("job");
    Check.same(arrived.get("job_id"), "5", "job");
    Check.same(
        arrived.get("names"),
        List.of("mine", Fingerprint.planName(plan), Fingerprint.shapeName(plan), "call site"),
        "names, best first");
    picture.stageSubmitted(1, 0, 4);
    for (int i = 0; i < 3; i++) {
      picture.taskStarted(1, 0);
    }
    picture.taskEnded(1, 0, true, 20);
    picture.taskEnded(1, 0, false, 0);
    Map<?, ?> counts = only(picture);
    Check.same(counts.get("started"), 3L, "started");
    Check.same(counts.get("finished"), 1L, "finished");
    Check.same(counts.get("failed"), 1L, "failed");
    Check.same(counts.get("executed_ms"), 20L, "executed");
    picture.stageCompleted(1);
    picture.jobEnded(1, true);
    Check.same(types(picture), "[stage_ended, stage_ended]", "the query is open");
    picture.jobStarted(job(2, "5", stage(3, 2)));
    Check.same(types(picture), "[stages_added]", "a second Spark job of the query");
    picture.jobEnded(2, false);
    picture.executionEnded("5", true);
    List<?> last = events(picture);
    Check.same(((Map<?, ?>) last.get(1)).get("type"), "job_ended", "the end");
    Check.same(((Map<?, ?>) last.get(1)).get("is_failed"), true, "one of its jobs failed");
    picture.executionStarted("6", plan);
    picture.jobStarted(job(3, "6", stage(4, 2)));
    picture.executionEnded("6", false);
    picture.jobEnded(3, false);
    Map<?, ?> ended = (Map<?, ?>) events(picture).get(1);
    Check.same(ended.get("is_failed"), true, "it failed, and the end of its job comes later");
  }

  /** A thread that began within an execution runs jobs of its id after the execution's end. */
  private static void keysThatAreUsedAgain() throws Exception {
    Picture picture = listening();
    List<Object> ids = new ArrayList<>();
    for (int job = 0; job < 3; job++) {
      picture.jobStarted(job(job, "5", stage(job, 1)));
      picture.stageSubmitted(job, 0, 1);
      picture.taskStarted(job, 0);
      picture.jobEnded(job, true);
      for (Object event : events(picture)) {
        Map<?, ?> fields = (Map<?, ?>) event;
        Object arrived = fields.get("job");
        ids.add(arrived == null ? fields.get("job_id") : ((Map<?, ?>) arrived).get("job_id"));
      }
    }
    Check.same(ids.toString(), "[5, 5, 5, 5, 5#2, 5#2, 5#2, 5#2, 5#3, 5#3, 5#3, 5#3]", "ids");
    String orders = "{\"type\":\"orders\",\"seq\":1,\"jobs\":[{\"job_id\":\"5#3\",\"tier\":7}],"
        + "\"stages\":[],\"other_tier\":9}";
    Check.same(Wire.orders(JSON.readTree(orders)).order.job("5").tier, 7.0, "its order");
  }

  private static void copiesAndRepeats() {
    Picture picture = listening();
    picture.jobStarted(job(1, "job 1", stage(1, 2)));
    picture.stageSubmitted(1, 0, 2);
    events(picture);
    for (int i = 0; i < 3; i++) { // one of them is a copy
      picture.taskStarted(1, 0);
    }
    for (int i = 0; i < 3; i++) {
      picture.taskEnded(1, 0, true, 5);
    }
    Map<?, ?> counts = only(picture);
    Check.same(counts.get("started"), 2L, "copies do not count");
    Check.same(counts.get("finished"), 2L, "nor do their ends");
    picture.taskLost(1, 0);
    picture.taskLost(1, 1); // of an attempt that does not run
    Check.same(only(picture).get("tasks"), 1, "a task whose executor is lost runs again");
    picture.taskStarted(1, 0);
    picture.taskEnded(1, 0, true, 5);
    Check.same(only(picture).get("finished"), 1L, "and counts again");
    picture.stageCompleted(1);
    picture.taskLost(1, 0);
    picture.stageSubmitted(1, 1, 1);
    picture.taskEnded(1, 0, true, 5);
    Check.same(types(picture), "[stage_ended, stage_begun_again]", "output that was lost");
  }

  private static void skippedStages() {
    Picture picture = listening();
    picture.jobStarted(job(1, "job 1", stage(1, 2), stage(2, 2, 1), stage(3, 2, 2)));
    events(picture);
    picture.stageSubmitted(3, 0, 1);
    List<?> events = events(picture);
    Check.same(((Map<?, ?>) events.get(0)).get("type"), "stage_changed", "fewer tasks");
    Check.same(events.size(), 3, "those above it end");
    picture.stageSubmitted(1, 0, 1); // a part of its output is lost
    Map<?, ?> job = (Map<?, ?>) ((List<?>) picture.takeState(2).get("jobs")).get(0);
    String stage = String.valueOf(((List<?>) job.get("stages")).get(0));
    Check.same(stage, "{stage_id=1, tasks=1}", "only what runs again counts");
  }

  private static void bounds() {
    AtomicInteger numSignals = new AtomicInteger();
    Picture picture = new Picture(numSignals::incrementAndGet);
    picture.jobStarted(job(0, "job 0", stage(0, 1)));
    Check.same(numSignals.get(), 0, "no action before a connection");
    picture.needState();
    picture.takeState(1);
    Check.that(!picture.hasEvents(), "everything was sent");
    for (int i = 1; i <= Picture.MAX_EVENTS + 10; i++) {
      picture.jobStarted(job(i, "job " + i, stage(i, 1)));
    }
    Check.that(picture.needsState(), "too many events: the whole state is sent again");
    Check.same(events(picture).size(), 0, "and the events are dropped");
    Check.same(
        ((List<?>) picture.takeState(2).get("jobs")).size(), Picture.MAX_EVENTS + 11, "open jobs");
    picture.stopListening();
    picture.jobEnded(3, true);
    Check.same(events(picture).size(), 0, "nothing is kept without a connection");
  }

  /** A wall clock that is set back by an hour; waking up by an order's time depends on it. */
  private static void clock() throws Exception {
    Picture picture = new Picture(() -> { });
    Field clockMs = Picture.class.getDeclaredField("clockMs");
    clockMs.setAccessible(true);
    clockMs.setLong(picture, picture.clockNow() + 3_600_000);
    long before = picture.clockNow();
    Thread.sleep(20);
    Check.that(picture.clockNow() > before, "the clock stands still");
  }

  private static void print(Object message) throws Exception {
    System.out.println(JSON.writeValueAsString(message));
  }

  private static void play(int steps, Random random) throws Exception {
    Picture picture = new Picture(() -> { });
    picture.needState();
    print(picture.takeState(0));
    int numJobs = 0;
    for (int step = 1; step <= steps; step++) {
      int job = random.nextInt(numJobs + 1);
      int id = job * STAGES + random.nextInt(STAGES);
      int attempt = random.nextInt(8) == 0 ? 1 : 0;
      switch (random.nextInt(14)) {
        case 0:
          int first = numJobs * STAGES;
          picture.jobStarted(job(numJobs, random.nextBoolean() ? "job " + numJobs : "" + numJobs,
              stage(first, 3), stage(first + 1, 5, first), stage(first + 2, 1, first + 1)));
          numJobs++;
          break;
        case 1:
          picture.stageSubmitted(id, attempt, 1 + random.nextInt(5));
          break;
        case 2:
          picture.stageCompleted(id);
          break;
        case 3:
          if (random.nextInt(4) == 0) {
            picture.jobEnded(job, random.nextBoolean());
          }
          break;
        case 4:
          picture.coresChanged(random.nextInt(9));
          break;
        case 5:
        case 6:
        case 7:
          picture.taskStarted(id, attempt);
          break;
        case 8:
          picture.taskLost(id, attempt);
          break;
        default:
          picture.taskEnded(id, attempt, random.nextInt(5) > 0, random.nextInt(90));
      }
      if (picture.needsState()) {
        print(picture.takeState(0));
      } else if (random.nextInt(20) == 0) {
        print(picture.takeEvents(step));
        print(picture.takeState(step));
      } else if (random.nextInt(4) == 0) {
        print(picture.takeEvents(step));
      }
    }
  }

  public static void main(String[] args) throws Exception {
    if (args.length > 0) {
      Random random = new Random(3);
      for (int i = 0; i < Integer.parseInt(args[0]); i++) {
        play(Integer.parseInt(args[1]), random);
      }
      return;
    }
    Check.test("a query from beginning to end", PictureTest::aQuery);
    Check.test("keys that are used again", PictureTest::keysThatAreUsedAgain);
    Check.test("copies and repeats", PictureTest::copiesAndRepeats);
    Check.test("stages that need not run", PictureTest::skippedStages);
    Check.test("a clock that is set back", PictureTest::clock);
    Check.test("bounds", PictureTest::bounds);
    Check.done();
  }
}
