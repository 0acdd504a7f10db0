package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.List;
import parcae.spark.Check;

/**
 * Sizes of queries that never ran must equal those of Python, in the file of the argument:
 * {"schemas": [[text, bytes of a row]], "points": [[bytes, work]], "priors": [[bytes, work]]}.
 */
final class LearnedTest {
  private LearnedTest() {}

  private static void near(double found, double expected, String what) {
    double error = Math.abs(found - expected) / Math.max(1e-9, Math.abs(expected));
    Check.that(error <= 1e-6, what + ": found " + found + ", expected " + expected);
  }

  private static Profile stages(int tasks, double taskMs) {
    return new Profile(List.of(new Profile.Stage(tasks, taskMs, List.of())));
  }

  private static void learn(Learned learned, String name, int atMs, double bytes, double workMs) {
    learned.observe(name, stages(10, workMs / 10), new Learned.Run(atMs, bytes, workMs));
  }

  private static void asPython(JsonNode fixture) {
    for (JsonNode schema : fixture.path("schemas")) {
      String text = schema.get(0).asText();
      Check.same(Scans.bytesOfRow(text), schema.get(1).asInt(), text);
    }
    Learned learned = new Learned();
    for (JsonNode point : fixture.path("points")) {
      String name = Fingerprint.SHAPE + point;
      learn(learned, name, 0, point.get(0).asDouble(), point.get(1).asDouble());
    }
    for (JsonNode prior : fixture.path("priors")) {
      near(learned.priorMs(prior.get(0).asDouble()), prior.get(1).asDouble(), prior.toString());
    }
  }

  private static void knownShapes() {
    Learned learned = new Learned();
    near(learned.priorMs(15e6), 1_000, "20 MB a second until queries are known");
    learn(learned, "shape-a", 1, 15e6, 900);
    learn(learned, "shape-a", 3, 15e6, 1_000);
    learn(learned, "shape-a", 2, 15e6, 5_000);
    near(learned.find("shape-a", 15e6).workMs, 1_000, "the median of the runs");
    near(learned.find("shape-a", 0).workMs, 1_000, "bytes that are not known");
    near(learned.find("shape-a", 35e6).workMs, 2_000, "twice the bytes, with the overhead's");
    Check.same(learned.find("shape-b", 1), null, "an unknown name");
    for (int run = 0; run < 2 * Learned.MAX_RUNS; run++) {
      learn(learned, "shape-a", 10 + run, 15e6, 7_000);
    }
    near(learned.find("shape-a", 15e6).workMs, 7_000, "old runs are forgotten");
  }

  private static void queryByBytes() {
    Query query = new Query(List.of("a"), null, 1_000, 0);
    query.reads(1e6, 1);
    query.priorMs = 5_000;
    query.listed(1, 100, List.of());
    near(Estimates.remainingMs(query), 5_000, "the bytes say it, not the number of tasks");
    query.submitted(1, 0, 100);
    for (int task = 0; task < 50; task++) {
      query.taskStarted(1, 0);
      query.taskSucceeded(1, 0, 20);
    }
    query.taskStarted(1, 0);
    near(Estimates.remainingMs(query), 5_000 - 50 * 20 - 20, "less what has run and what runs");
    query.priorMs = 1_500;
    near(Estimates.remainingMs(query), 49 * 20, "at least what is listed");
  }

  private static void queryOfAnotherScale() {
    Query query = new Query(List.of("a"), stages(10, 100), 1_000, 0);
    query.reads(15e6, 1);
    query.reads(35e6, Learned.ratio(35e6, 15e6));
    near(Estimates.remainingMs(query), 2_000, "twice the bytes");
    query.submitted(1, 0, 40);
    near(Estimates.remainingMs(query), 2_000, "the work stays where there are more tasks");
    query.reads(75e6, Learned.ratio(75e6, 35e6));
    near(Estimates.remainingMs(query), 2_000, "a stage that runs shows its work by its tasks");
  }

  public static void main(String[] args) throws Exception {
    JsonNode fixture = new ObjectMapper().readTree(new File(args[0]));
    Check.test("sizes as in Python", () -> asPython(fixture));
    Check.test("shapes that ran before", LearnedTest::knownShapes);
    Check.test("a query by its bytes", LearnedTest::queryByBytes);
    Check.test("a query of another scale", LearnedTest::queryOfAnotherScale);
    Check.done();
  }
}
