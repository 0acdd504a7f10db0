package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Consumer;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/** A policy file is read whole, or refused with one line that says what to do. */
final class PolicyTest {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static ObjectNode good;
  private static Path folder;

  private static void refused(String word, Path file) throws Exception {
    try {
      Policy.read(file);
    } catch (PolicyException error) {
      String line = error.getMessage();
      Check.that(line.contains(word), line + " lacks " + word);
      Check.that(line.contains(file.toString()) && line.contains("parcae export"), line);
      Check.that(!line.contains("\n"), line);
      Check.same(Reason.of("x", error), line, "the log's line");
      return;
    }
    throw new AssertionError("was not refused: " + word);
  }

  private static Path changed(Consumer<ObjectNode> change) throws Exception {
    ObjectNode changed = good.deepCopy();
    change.accept(changed);
    return Files.write(folder.resolve("changed.json"), JSON.writeValueAsBytes(changed));
  }

  private static void refused(String word, Consumer<ObjectNode> change) throws Exception {
    refused(word, changed(change));
  }

  private static void older(ObjectNode root, Double guard) {
    root.put("version", 2).put("guard", guard).remove("account");
  }

  private static ObjectNode parameters(ObjectNode root) {
    return (ObjectNode) root.path("parameters");
  }

  private static ObjectNode firstJob(ObjectNode root) {
    return (ObjectNode) root.path("jobs").elements().next();
  }

  private static ObjectNode firstStage(ObjectNode root) {
    return (ObjectNode) firstJob(root).path("stages").get(0);
  }

  @BeforeAll
  static void prepare() throws Exception {
    for (JsonNode each : JSON.readTree(PolicyTest.class.getResource("/planning.json"))) {
      if (each.path("policy").path("kind").asText().equals("order-rule")) {
        good = (ObjectNode) each.path("policy");
      }
    }
    good.put("version", 3).remove("guard");
    good.putObject("account").put("factor", 2).put("floor", 0.25);
    folder = Files.createTempDirectory("policy");
  }

  @Test
  void aGoodFile() throws Exception {
    Policy policy = Policy.read(changed(root -> root.put("policy", "tuned+account")));
    String knows = "which knows " + good.path("jobs").size() + " jobs";
    Check.that(policy.toString().endsWith(knows), policy.toString());
    Check.same(policy.guessMs(), good.path("guess_ms").asDouble(), "guess");
    Check.same(policy.name(), "tuned+account", "name");
    Check.that(policy.rule() != null, "a rule");
    Check.same(policy.account().factor, 2.0, "factor");
    Check.same(policy.account().floor, 0.25, "floor");
    Check.that(policy.find("unknown") == null, "an unknown job");
  }

  @Test
  void bytesOrNone() throws Exception {
    String job = good.path("jobs").fieldNames().next();
    Profile without = Policy.read(changed(root -> { })).find(job);
    Profile with = Policy.read(changed(root -> firstJob(root).put("scan_bytes", 5e6))).find(job);
    Check.same(without.at(1e9).workMs, without.workMs, "bytes that are not known");
    Check.same(with.at(0).workMs, without.workMs, "a query whose bytes are not known");
    double twice = with.at(15e6).workMs / without.workMs;
    Check.that(Math.abs(twice - 2) < 1e-9, "twice the bytes, with the overhead's: " + twice);
    refused("scan_bytes = -1", root -> firstJob(root).put("scan_bytes", -1));
  }

  @Test
  void accountsOrNone() throws Exception {
    Check.that(Policy.read(changed(root -> root.putNull("account"))).account() == null, "none");
    Check.that(Policy.read(changed(root -> older(root, null))).account() == null, "no guard");
    Check.same(
        Policy.read(changed(root -> older(root, 1.1))).account().factor, 1.5, "instead of one");
    Check.same(Policy.plain().account().factor, 1.5, "without a file");
  }

  @Test
  void filesThatAreNone() throws Exception {
    refused("cannot be read", folder.resolve("nowhere.json"));
    refused("is not JSON", Files.writeString(folder.resolve("torn.json"), "{\"format\": "));
    refused("no JSON object", Files.writeString(folder.resolve("list.json"), "[]"));
    refused("no JSON object", Files.writeString(folder.resolve("empty.json"), ""));
  }

  @Test
  void otherFormatsAndVersions() throws Exception {
    refused("another format", root -> root.put("format", "parcae-workload"));
    refused("reads versions 2 and 3", root -> root.put("version", 1));
    refused("reads versions 2 and 3", root -> root.remove("version"));
    refused("order-rule, order-network and formula", root -> root.put("kind", "decima"));
  }

  @Test
  void parametersAndAccounts() throws Exception {
    refused("lacks the field NARROW", root -> parameters(root).remove("NARROW"));
    refused("unknown field SPEED", root -> parameters(root).put("SPEED", 1));
    refused("NARROW = \"x\"", root -> parameters(root).put("NARROW", "x"));
    refused("unknown field", root -> root.put("kind", "srpt"));
    refused("lacks the field weights", root -> root.put("kind", "order-network"));
    refused("has 0 weights", root -> root.put("kind", "order-network").putArray("weights"));
    refused("the weight \"x\"", root -> {
      ArrayNode weights = root.put("kind", "order-network").putArray("weights");
      for (int i = 1; i < Network.WEIGHTS; i++) {
        weights.add(i);
      }
      weights.add("x");
    });
    refused("unknown field guard", root -> root.put("guard", 1));
    refused("lacks the field account", root -> root.remove("account"));
    refused("of the account", root -> root.put("account", true));
    refused("floor = 0.0 of the account",
        root -> ((ObjectNode) root.path("account")).put("floor", 0));
  }

  @Test
  void fieldsThatAreMissingUnknownOrWrong() throws Exception {
    refused("lacks the field guess_ms", root -> root.remove("guess_ms"));
    refused("lacks the field jobs", root -> root.remove("jobs"));
    refused("unknown field guess", root -> root.put("guess", 1));
    refused("mean_work_ms", root -> root.put("mean_work_ms", -1));
    refused("mean_work_ms", root -> root.put("mean_work_ms", "many"));
    refused("lacks the field stages", root -> firstJob(root).remove("stages"));
    refused("no stages", root -> firstJob(root).putArray("stages"));
    refused("lacks the field task_ms", root -> firstStage(root).remove("task_ms"));
    refused("0 tasks", root -> firstStage(root).put("tasks", 0));
    refused("is no stage", root -> firstStage(root).putArray("parents").add(99));
    refused("wait for each other", root -> firstStage(root).putArray("parents").add(0));
  }
}
