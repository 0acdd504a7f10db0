package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.LongSupplier;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/**
 * Compares the planner's orders with those that Python computes (in the file of the argument), and
 * checks how it follows queries.
 */
final class PlannerTest {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static JsonNode cases;
  private static Policy policy;
  private static Policy probing;

  private static Follower.ListedStage stage(int id, int tasks, Integer... parents) {
    return new Follower.ListedStage(id, tasks, List.of(parents));
  }

  private static void start(Planner planner, int job, String name, Follower.ListedStage... stages) {
    planner.jobStarted(new Follower.StartedJob(
        job, "job " + job, null, List.of(name), "a call site", List.of(stages)));
  }

  private static void startSql(
      Planner planner, int job, String execution, Follower.ListedStage... stages) {
    planner.jobStarted(new Follower.StartedJob(
        job, execution, execution, List.of(), "made up " + job, List.of(stages)));
  }

  private static Planner planner(Policy of) {
    return planner(of, () -> 0);
  }

  private static Planner planner(Policy of, LongSupplier clock) {
    return new Planner(of, clock, clock, user -> 1);
  }

  private static double tier(Planner planner, int job) {
    return planner.plan().job("job " + job).tier;
  }

  private static double tier(Planner planner, String execution) {
    return planner.plan().job(execution).tier;
  }

  private static void ran(Planner planner, int stage, int tasks, double ms) {
    planner.stageSubmitted(stage, 0, tasks);
    for (int i = 0; i < tasks; i++) {
      planner.taskStarted(stage, 0);
      planner.taskEnded(stage, 0, true, ms);
    }
    planner.stageCompleted(stage);
  }

  private static void near(double found, double expected, String what) {
    double error = Math.abs(found - expected) / Math.max(1e-9, Math.abs(expected));
    Check.that(error <= 1e-6, what + ": found " + found + ", expected " + expected);
  }

  /** One run of an application: its events, and the orders that Python makes of them. */
  private static final class Run {
    private static final Map<String, Double> WEIGHTS = Map.of("bob", 2.0, "dee", 0.5);

    private long timeMs;
    private final Planner planner;
    private final Map<Integer, Deque<Long>> tasks = new HashMap<>(); // that hold cores, by stage
    private long numTasks;

    Run(Policy policy) {
      planner = new Planner(
          policy, () -> timeMs, () -> timeMs, user -> WEIGHTS.getOrDefault(user, 1.0));
    }

    void take(JsonNode event, String where) {
      change(event, where);
      Map<Integer, Integer> running = new HashMap<>();
      planner.queries().values().forEach(query ->
          query.rows().forEach(row -> running.put(row.stageId, row.running())));
      running.keySet().forEach(stage -> tasks.putIfAbsent(stage, new ArrayDeque<>()));
      tasks.forEach((stage, held) -> {
        while (held.size() > running.getOrDefault(stage, 0)) {
          planner.taskReleased(held.pop(), stage, 1, timeMs, timeMs);
        }
        while (held.size() < running.getOrDefault(stage, 0)) {
          held.push(numTasks++);
          planner.taskHeld(held.peek(), stage, 1, timeMs);
        }
      });
    }

    private void change(JsonNode event, String where) {
      switch (event.get(0).asText()) {
        case "time":
          timeMs = event.get(1).asLong();
          planner.changes();
          break;
        case "cores":
          planner.coresChanged(event.get(1).asInt());
          break;
        case "execution":
          planner.executionStarted(event.get(1).asText(), "");
          break;
        case "execution end":
          planner.executionEnded(event.get(1).asText(), true);
          break;
        case "job":
          startJob(event);
          break;
        case "job end":
          planner.jobEnded(event.get(1).asInt(), event.get(2).asBoolean());
          break;
        case "plan":
          same(planner.plan(), event.get(1), where);
          break;
        default:
          takeStage(event, event.get(1).asInt());
      }
    }

    private void startJob(JsonNode event) {
      List<Follower.ListedStage> stages = new ArrayList<>();
      for (JsonNode stage : event.get(4)) {
        List<Integer> parents = new ArrayList<>();
        stage.get(2).forEach(parent -> parents.add(parent.asInt()));
        int id = stage.get(0).asInt();
        stages.add(new Follower.ListedStage(id, stage.get(1).asInt(), parents));
      }
      String query = event.get(2).asText();
      List<String> names = List.of(event.get(3).asText());
      planner.jobStarted(new Follower.StartedJob(
          event.get(1).asInt(), query, query, names, "a call site", stages)
          .by(event.path(5).asText(), ""));
    }

    private void takeStage(JsonNode event, int stage) {
      switch (event.get(0).asText()) {
        case "submit":
          planner.stageSubmitted(stage, event.get(2).asInt(), event.get(3).asInt());
          break;
        case "start":
          for (int i = 0; i < event.get(3).asInt(); i++) {
            planner.taskStarted(stage, event.get(2).asInt());
          }
          break;
        case "end":
          event.get(3).forEach(tookMs ->
              planner.taskEnded(stage, event.get(2).asInt(), true, tookMs.asDouble()));
          break;
        case "fail":
          planner.taskEnded(stage, event.get(2).asInt(), false, 0);
          break;
        case "complete":
          planner.stageCompleted(stage);
          break;
        default:
          throw new AssertionError("an unknown event: " + event);
      }
    }

    private void same(Order order, JsonNode expected, String where) {
      Check.same(planner.numOpen(), expected.path("jobs").size(), where + ", open queries");
      expected.path("jobs").fields().forEachRemaining(entry -> {
        Order.Job found = order.job(entry.getKey());
        JsonNode limit = entry.getValue().get(1);
        String what = where + ", query " + entry.getKey();
        near(found.tier, entry.getValue().get(0).asDouble(), what);
        Check.same(found.limit, limit.isNull() ? Order.UNLIMITED : limit.asInt(), what);
      });
      expected.path("stages").fields().forEachRemaining(entry -> {
        Order.Stage found = order.stage(Integer.parseInt(entry.getKey()));
        near(found.rank, entry.getValue().asDouble(), where + ", stage " + entry.getKey());
      });
      Check.same(order.numStages(), expected.path("stages").size(), where + ", ordered stages");
      Check.same(order.wakeMs(), expected.path("wake_ms").asLong(), where + ", time to wake");
      expected.path("accounts").fields().forEachRemaining(entry -> {
        Accounts.Account found = planner.ledgers().find(entry.getKey(), "");
        String what = where + ", account of " + entry.getKey();
        near(found.receivedMs(), entry.getValue().get(0).asDouble(), what + ", received");
        near(found.splitMs(), entry.getValue().get(1).asDouble(), what + ", split");
      });
    }
  }

  private static Policy read(JsonNode content) throws Exception {
    Path file = Files.createTempFile("policy", ".json");
    return Policy.read(Files.write(file, JSON.writeValueAsBytes(content)));
  }

  private static void golden(JsonNode cases) throws Exception {
    for (JsonNode each : cases) {
      Policy read = read(each.path("policy"));
      int number = 0;
      for (JsonNode events : each.path("runs")) {
        Run run = new Run(read);
        String where = read.name() + ", run " + number++ + ", event ";
        for (int i = 0; i < events.size(); i++) {
          run.take(events.get(i), where + i);
        }
      }
    }
  }

  @Test
  void skippedStages() {
    Planner planner = planner(policy);
    start(planner, 1, "unknown", stage(1, 50), stage(2, 50, 1), stage(3, 4, 2));
    near(tier(planner, 1), 104 * policy.guessMs(), "all listed stages");
    planner.stageSubmitted(3, 0, 4);
    near(tier(planner, 1), 4 * policy.guessMs(), "those above the one that runs do not run");
  }

  @Test
  void failures() {
    Planner planner = planner(policy);
    start(planner, 1, "unknown", stage(1, 4));
    planner.stageSubmitted(1, 0, 4);
    planner.taskStarted(1, 0);
    planner.taskEnded(1, 0, false, 0);
    near(tier(planner, 1), 4 * policy.guessMs(), "a task that failed is to run again");
    for (int i = 0; i < 6; i++) { // copies of tasks
      planner.taskStarted(1, 0);
      planner.taskEnded(1, 0, true, policy.guessMs());
    }
    double done = Estimates.LEAST_SHARE * 4 * policy.guessMs();
    planner.taskLost(1, 0);
    near(tier(planner, 1), policy.guessMs(), "a task whose executor is lost is to run again");
    planner.taskStarted(1, 0);
    planner.taskEnded(1, 0, true, policy.guessMs());
    planner.stageCompleted(1);
    near(tier(planner, 1), done, "copies do not count");
    planner.stageSubmitted(1, 1, 2);
    near(tier(planner, 1), 2 * policy.guessMs(), "output that was lost");
    planner.taskEnded(1, 0, true, 1e9);
    near(tier(planner, 1), 2 * policy.guessMs(), "a task of an earlier attempt");
    planner.jobEnded(1, false);
    Check.same(planner.numOpen(), 0, "open queries");
    planner.taskEnded(1, 1, true, 1);
    planner.stageSubmitted(7, 0, 1);
    planner.jobEnded(99, true);
  }

  @Test
  void learning() {
    Planner planner = planner(policy);
    double[] took = {100, 900, 200};
    for (int run = 0; run < took.length; run++) {
      start(planner, run, "nightly", stage(run, 10));
      ran(planner, run, 10, took[run]);
      planner.jobEnded(run, true);
    }
    start(planner, 7, "nightly");
    near(tier(planner, 7), 2_000, "the median of three runs");
    planner.jobEnded(7, true);
    start(planner, 8, "nightly", stage(8, 10));
    ran(planner, 8, 10, 1e6);
    planner.jobEnded(8, false);
    start(planner, 9, "nightly");
    near(tier(planner, 9), 2_000, "a run that failed teaches nothing");
  }

  @Test
  void executions() {
    Planner planner = planner(policy);
    String plan = "== Physical Plan ==\n* Filter (2)\n\n(2) Filter\nCondition : (a#1 > %d)\n";
    planner.executionStarted("5", String.format(plan, 10));
    startSql(planner, 1, "5", stage(1, 10));
    ran(planner, 1, 10, 50);
    planner.jobEnded(1, true);
    startSql(planner, 2, "5", stage(2, 10));
    Check.that(tier(planner, "5") > 400, "a second job of the execution");
    ran(planner, 2, 10, 50);
    planner.jobEnded(2, true);
    Check.same(planner.numOpen(), 1, "an execution between its jobs");
    near(tier(planner, "5"), Estimates.LEAST_SHARE * 1_000, "a share of what was done");
    planner.executionEnded("5", true);
    Check.same(planner.numOpen(), 0, "an execution that ended");
    planner.executionStarted("6", String.format(plan, 11));
    startSql(planner, 3, "6", stage(3, 10));
    near(tier(planner, "6"), 1_000, "the same query with another literal");
    ran(planner, 3, 1, 50);
    planner.executionEnded("6", false);
    startSql(planner, 4, "6", stage(4, 1));
    planner.jobEnded(4, true);
    Check.same(planner.numOpen(), 0, "a job after its execution's end");
    planner.executionStarted("7", String.format(plan, 12));
    startSql(planner, 5, "7");
    near(tier(planner, "7"), 1_000, "an execution that failed teaches nothing");
    Properties nested = new Properties();
    nested.setProperty("spark.sql.execution.id", "9");
    nested.setProperty("spark.sql.execution.root.id", "8");
    Check.same(Order.queryOf(nested, 1), "8", "an execution within another");
    near(planner.plan().job("8").tier, policy.meanWorkMs(), "a query without any event");
  }

  /** Queries end, and the virtual run has not come to them: it forgets the oldest. */
  private static void manyQueries(Policy ruled) throws Exception {
    Planner planner = planner(ruled);
    for (int job = 0; job < 1_100; job++) {
      start(planner, job, "unknown", stage(job, 1));
      ran(planner, job, 1, 5);
      planner.jobEnded(job, true);
    }
    planner.plan();
    Field run = Planner.class.getDeclaredField("fairRun");
    Field members = FairRun.class.getDeclaredField("members");
    run.setAccessible(true);
    members.setAccessible(true);
    Check.same(((List<?>) members.get(run.get(planner))).size(), 1_000, "members");
  }

  @Test
  void emptyAttempts() {
    Query query = new Query(List.of("a"), null, 100, 0);
    query.submitted(1, 0, 3);
    query.submitted(1, 1, 0);
    Check.same(query.rows().get(0).tasks, 1, "tasks of an attempt with nothing to run");
  }

  /** What metrics and page show of an open query. */
  private static void views(Policy policy) {
    long[] nowMs = {0};
    double[] ended = new double[2];
    Planner planner = planner(policy, () -> nowMs[0]).watchedBy((expectedMs, workMs) -> {
      ended[0] = expectedMs;
      ended[1] = workMs;
    });
    planner.jobStarted(new Follower.StartedJob(
        7, "job 7", null, List.of("nobody knows"), "a call site", List.of(stage(1, 3))));
    double eachMs = policy.guessMs();
    nowMs[0] = 100;
    Check.same(planner.openQueries().get(0).waitedMs, 0L, "without a task to start");
    planner.stageSubmitted(1, 0, 3);
    nowMs[0] = 350;
    QueryView waiting = planner.openQueries().get(0);
    Check.same(waiting.key + " " + waiting.label.name, "job 7 nobody knows", "key and name");
    Check.same(List.of(waiting.ageMs, waiting.waitedMs), List.of(350L, 250L), "age and wait");
    Check.same(List.of(waiting.running, waiting.toStart), List.of(0, 3), "tasks");
    planner.taskStarted(1, 0);
    QueryView running = planner.openQueries().get(0);
    Check.same(List.of(running.running, running.toStart), List.of(1, 2), "tasks, one runs");
    Check.same(running.waitedMs, 0L, "a wait while a task runs");
    nowMs[0] = 400;
    planner.taskEnded(1, 0, true, 50);
    nowMs[0] = 500;
    QueryView again = planner.openQueries().get(0);
    Check.same(again.waitedMs, 100L, "a wait between its tasks");
    Check.same(again.doneMs, 50.0, "work done");
    Check.that(again.leftMs > 0 && again.leftMs < 3 * eachMs, "work left: " + again.leftMs);
    planner.jobEnded(7, true);
    Check.same(planner.openQueries().size(), 0, "open queries");
    Check.same(ended[0], 3 * eachMs, "the work that was expected");
    Check.same(ended[1], 50.0, "the work that it was");
  }

  /** The thread plans after an event, and again at the order's wake-up time without an event. */
  private static void wakeUps(Policy probing) throws Exception {
    Guest guest = new Guest("a.Plugin");
    Planner planner = planner(probing, () -> System.nanoTime() / 1_000_000);
    Planning planning = new Planning(guest, planner, new Trace(""), new Metrics());
    planning.start();
    Check.that(guest.order() == Order.NONE, "an order before any event");
    List<String> names = List.of("small");
    planning.jobStarted(new Follower.StartedJob(
        1, "job 1", null, names, "a call site", List.of(stage(1, 40))));
    planning.stageSubmitted(1, 0, 40);
    planning.taskStarted(1, 0);
    for (int orders = 0; orders < 6; orders++) { // events cause at most three of them
      Order before = guest.order();
      long deadlineNs = System.nanoTime() + 30_000_000_000L;
      while (guest.order() == before) {
        Check.that(System.nanoTime() < deadlineNs, "no order came");
        Thread.sleep(1);
      }
      Check.that(guest.order().job("job 1").limit < Order.UNLIMITED, "the query is tried first");
    }
    planning.stop();
  }

  @BeforeAll
  static void prepare() throws Exception {
    cases = JSON.readTree(PlannerTest.class.getResource("/planning.json"));
    policy = read(cases.get(0).path("policy"));
    probing = read(cases.get(cases.size() - 2).path("policy"));
  }

  @Test
  void theGoldenRuns() throws Exception {
    golden(cases);
  }

  @Test
  void manyQueries() throws Exception {
    manyQueries(probing);
  }

  @Test
  void whatIsSeenOfOpenQueries() throws Exception {
    views(policy);
  }

  @Test
  void timesToWake() throws Exception {
    wakeUps(probing);
  }
}
