package parcae.spark.guest;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.JsonProtocol;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/** Blocks of experiments: their schedule, and what Spark's event log gets. */
final class ExperimentTest {
  private static final LinkedBlockingQueue<Boolean> ARMS = new LinkedBlockingQueue<>();
  private static final LinkedBlockingQueue<SparkListenerEvent> EVENTS =
      new LinkedBlockingQueue<>();

  private static Experiment read(String json) throws Exception {
    return Experiment.of(new ObjectMapper().readTree(json), "x");
  }

  private static void isRefused(String json, String why) throws Exception {
    try {
      read(json);
      throw new AssertionError("was not refused: " + json);
    } catch (PolicyException error) {
      Check.that(error.getMessage().contains(why), error.getMessage());
    }
  }

  /** Calls a method of Spark's log, which the oldest Spark does not have. */
  private static Object json(String method, Class<?> type, Object argument) throws Exception {
    return JsonProtocol.class.getMethod(method, type).invoke(null, argument);
  }

  private static String logged() throws Exception {
    SparkListenerEvent event = EVENTS.poll(30, TimeUnit.SECONDS);
    String line = (String) json("sparkEventToJsonString", SparkListenerEvent.class, event);
    // A history server that has the class on its class path reads the line.
    Object again = json("sparkEventFromJson", String.class, line);
    Check.same(
        json("sparkEventToJsonString", SparkListenerEvent.class, again),
        line,
        "an event that was read");
    return line;
  }

  @Test
  void theGenerator() { // outputs of its published code
    Check.same(
        Long.toUnsignedString(Experiment.random(1234567, 0)), "6457827717110365317", "first");
    Check.same(
        Long.toUnsignedString(Experiment.random(1234567, 1)), "3203168211198807973", "second");
  }

  @Test
  void aSchedule() throws Exception {
    Experiment experiment = read("{\"block\": \"10m\", \"seed\": 7}");
    Check.same(
        experiment.toString(), "blocks of 600000 ms, 60000 ms of washout, seed 7", "its words");
    Check.that(experiment.equals(new Experiment(600_000, 60_000, 7)), "is equal");
    Check.that(!experiment.equals(new Experiment(600_000, 60_000, 8)), "another seed");
    Check.same(experiment.blockOf(1_200_000 - 1), 1L, "counted from 1970");
    int firsts = 0;
    for (long pair = 0; pair < 1_000; pair++) {
      boolean first = experiment.isPolicy(2 * pair);
      Check.that(first != experiment.isPolicy(2 * pair + 1), "one of a pair");
      firsts += first ? 1 : 0;
    }
    Check.that(firsts > 450 && firsts < 550, "firsts of 1,000: " + firsts);
  }

  @Test
  void wrongFields() throws Exception {
    isRefused("7", "x is no JSON object");
    isRefused("{}", "x.block is \"\"");
    isRefused("{\"block\": \"10 min\"}", "x.block is \"10 min\"; set it to a time");
    isRefused("{\"block\": \"900ms\"}", "x.block is shorter than 1s");
    isRefused("{\"block\": \"1h\", \"washout\": \"31m\"}", "longer than half a block");
    isRefused("{\"block\": \"1h\", \"seed\": 1.5}", "x.seed is 1.5");
    isRefused("{\"block\": \"1h\", \"sead\": 1}", "unknown fields (sead)");
  }

  @Test
  void blocksAsTheyComeAndTheEnd() throws Exception {
    Experiment experiment = read("{\"block\": \"1s\", \"washout\": \"0s\"}");
    AtomicBoolean isWorking = new AtomicBoolean(true);
    long fromMs = System.currentTimeMillis();
    experiment.new Running(isWorking::get, ARMS::add, EVENTS::add);
    long block = -1;
    for (int i = 0; i < 4; i++) {
      boolean isPolicy = ARMS.poll(30, TimeUnit.SECONDS);
      String line = logged();
      long at = new ObjectMapper().readTree(line).path("time").asLong();
      Check.that(at >= fromMs && at <= System.currentTimeMillis(), line);
      Check.that(block < 0 || experiment.blockOf(at) == block + 1, line);
      block = experiment.blockOf(at);
      Check.same(isPolicy, experiment.isPolicy(block), "the arm of a block");
      Check.same(
          line,
          "{\"Event\":\"parcae.spark.ExperimentEvent\",\"time\":" + at + ",\"block\":" + block
              + ",\"arm\":\"" + (isPolicy ? "policy" : "stock")
              + "\",\"blockMs\":1000,\"washoutMs\":0,\"seed\":0}",
          "a line");
    }
    isWorking.set(false);
    String line = logged();
    for (; !line.contains("\"none\""); line = logged()) {
      ARMS.poll(30, TimeUnit.SECONDS);
    }
    Check.same(ARMS.poll(30, TimeUnit.SECONDS), true, "what the mode says applies");
    Check.that(EVENTS.poll(2, TimeUnit.SECONDS) == null, "an end is the end");
  }
}
