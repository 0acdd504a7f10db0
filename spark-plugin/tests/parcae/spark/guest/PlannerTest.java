package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import parcae.spark.Check;

/** The planner finds what Python's estimator finds (the argument's file), and follows queries. */
final class PlannerTest {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int STAGES_A_QUERY = 100;
  private static Policy policy;

  private PlannerTest() {}

  private static Planner.ListedStage stage(int id, int tasks, Integer... parents) {
    return new Planner.ListedStage(id, tasks, List.of(parents));
  }

  private static void start(Planner planner, int job, String name, Planner.ListedStage... stages) {
    planner.jobStarted(new Planner.StartedJob(
        job, "job " + job, null, List.of(name), "a call site", List.of(stages)));
  }

  private static void startSql(
      Planner planner, int job, String execution, Planner.ListedStage... stages) {
    planner.jobStarted(new Planner.StartedJob(
        job, execution, execution, List.of(), "made up " + job, List.of(stages)));
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

  private static void play(Planner planner, int job, JsonNode query) {
    List<Planner.ListedStage> listed = new ArrayList<>();
    int id = job * STAGES_A_QUERY;
    for (JsonNode stage : query.path("stages")) {
      listed.add(stage(id++, stage.path("tasks").asInt()));
    }
    start(planner, job, query.path("name").asText(), listed.toArray(new Planner.ListedStage[0]));
    id = job * STAGES_A_QUERY;
    for (JsonNode stage : query.path("stages")) {
      if (!stage.path("state").asText().equals("listed")) {
        planner.stageSubmitted(id, 0, stage.path("tasks").asInt());
        for (int i = 0; i < stage.path("started").asInt(); i++) {
          planner.taskStarted(id, 0);
        }
        for (JsonNode ms : stage.path("durations")) {
          planner.taskEnded(id, 0, true, ms.asDouble());
        }
        if (stage.path("state").asText().equals("complete")) {
          planner.stageCompleted(id);
        }
      }
      id++;
    }
  }

  private static void golden(JsonNode told) {
    Planner planner = new Planner(policy, () -> 0);
    int job = 0;
    for (JsonNode query : told.path("queries")) {
      play(planner, job++, query);
    }
    List<Integer> order = new ArrayList<>();
    for (int i = 0; i < job; i++) {
      JsonNode query = told.path("queries").get(i);
      near(tier(planner, i), query.path("remaining_ms").asDouble(), query.path("name").asText());
      order.add(i);
    }
    Order orders = planner.plan();
    order.sort(Comparator.comparingDouble(i -> orders.job("job " + i).tier));
    for (int i = 0; i < job; i++) {
      Check.same(order.get(i), told.path("order").get(i).asInt(), "place " + i);
    }
  }

  private static void skippedStages() {
    Planner planner = new Planner(policy, () -> 0);
    start(planner, 1, "unknown", stage(1, 50), stage(2, 50, 1), stage(3, 4, 2));
    near(tier(planner, 1), 104 * policy.guessMs(), "all listed stages");
    planner.stageSubmitted(3, 0, 4);
    near(tier(planner, 1), 4 * policy.guessMs(), "those above the one that runs do not run");
  }

  private static void failures() {
    Planner planner = new Planner(policy, () -> 0);
    start(planner, 1, "unknown", stage(1, 4));
    planner.stageSubmitted(1, 0, 4);
    planner.taskStarted(1, 0);
    planner.taskEnded(1, 0, false, 0);
    near(tier(planner, 1), 4 * policy.guessMs(), "a task that failed is to run again");
    for (int i = 0; i < 6; i++) { // copies of tasks
      planner.taskStarted(1, 0);
      planner.taskEnded(1, 0, true, policy.guessMs());
    }
    planner.stageCompleted(1);
    double done = OpenQuery.LEAST_SHARE * 4 * policy.guessMs();
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

  private static void learning() {
    Planner planner = new Planner(policy, () -> 0);
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

  private static void executions() {
    Planner planner = new Planner(policy, () -> 0);
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
    near(tier(planner, "5"), OpenQuery.LEAST_SHARE * 1_000, "a share of what was done");
    planner.executionEnded("5");
    Check.same(planner.numOpen(), 0, "an execution that ended");
    planner.executionStarted("6", String.format(plan, 11));
    startSql(planner, 3, "6");
    near(tier(planner, "6"), 1_000, "the same query with another literal");
    planner.executionEnded("6");
    startSql(planner, 4, "6", stage(4, 1));
    planner.jobEnded(4, true);
    Check.same(planner.numOpen(), 0, "a job after its execution's end");
    Properties nested = new Properties();
    nested.setProperty("spark.sql.execution.id", "9");
    nested.setProperty("spark.sql.execution.root.id", "8");
    Check.same(Order.queryOf(nested, 1), "8", "an execution within another");
    near(planner.plan().job("8").tier, policy.meanWorkMs(), "a query that nobody told of");
  }

  private static void manyQueries() {
    Planner planner = new Planner(policy, () -> 0);
    for (int job = 0; job < 500; job++) {
      start(planner, job, "job " + job, stage(job * 4, 100), stage(job * 4 + 1, 100, job * 4));
      planner.stageSubmitted(job * 4, 0, 100);
    }
    for (int i = 0; i < 50; i++) {
      planner.plan();
    }
    long start = System.nanoTime();
    for (int i = 0; i < 100; i++) {
      planner.plan();
    }
    double ms = (System.nanoTime() - start) / 1e8;
    Check.that(ms < 50, "an order of 500 queries takes " + ms + " ms");
  }

  public static void main(String[] args) throws Exception {
    JsonNode told = JSON.readTree(new File(args[0]));
    Path file = Files.createTempFile("policy", ".json");
    policy = Policy.read(Files.write(file, JSON.writeValueAsBytes(told.path("policy"))));
    Check.test("the golden situations", () -> golden(told));
    Check.test("stages that need not run", PlannerTest::skippedStages);
    Check.test("tasks that fail, copies, lost output", PlannerTest::failures);
    Check.test("queries that recur", PlannerTest::learning);
    Check.test("SQL executions", PlannerTest::executions);
    Check.test("500 open queries", PlannerTest::manyQueries);
    Check.done();
  }
}
