package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A policy file, as `parcae export` writes it: how to plan, and what is foretold of queries. */
final class Policy {
  static final String FORMAT = "parcae-policy";
  static final int VERSION = 1;
  private static final String KIND = "order-rule";
  private static final Set<String> FIELDS = Set.of(
      "format", "version", "policy", "kind", "parameters", "mean_work_ms", "guess_ms", "jobs");
  private static final Set<String> JOB_FIELDS = Set.of("work_ms", "stages");
  private static final Set<String> STAGE_FIELDS = Set.of("tasks", "task_ms", "parents");
  /** The one parameter that is not 0 in the plain order: no tasks are tried before all others. */
  private static final String PROBE = "PROBE";
  private static final double NO_PROBE = -5;

  private final Path file;
  private String name;
  private double meanWorkMs;
  private double guessMs;
  private final Map<String, Profile> jobs = new HashMap<>();

  private Policy(Path file) {
    this.file = file;
  }

  /** Reads a policy file; what it refuses to read is a PolicyException. */
  static Policy read(Path file) throws PolicyException {
    Policy policy = new Policy(file);
    try {
      policy.take(new ObjectMapper().readTree(Files.readAllBytes(file)));
    } catch (JsonProcessingException error) {
      throw policy.refusal("is not JSON (" + error.getOriginalMessage() + ")");
    } catch (IOException error) {
      throw policy.refusal("cannot be read (" + error + ")");
    }
    return policy;
  }

  Path file() {
    return file;
  }

  String name() {
    return name;
  }

  int numJobs() {
    return jobs.size();
  }

  /** Mean work of a query, in ms of one core. */
  double meanWorkMs() {
    return meanWorkMs;
  }

  /** What a task of an unknown query is thought to take, in ms. */
  double guessMs() {
    return guessMs;
  }

  /** What is foretold of a recurring query; null if the file does not know it. */
  Profile find(String job) {
    return jobs.get(job);
  }

  private PolicyException refusal(String what) {
    return new PolicyException(
        "the policy file " + file + " " + what + "; write one with `parcae export`");
  }

  private void take(JsonNode root) throws PolicyException {
    if (!root.isObject()) {
      throw refusal("is no JSON object");
    }
    if (!root.path("format").asText().equals(FORMAT)) {
      throw refusal("is of another format than " + FORMAT);
    }
    if (!root.path("version").isInt() || root.path("version").asInt() != VERSION) {
      throw refusal(
          "has version " + root.path("version") + ", and this plugin reads version " + VERSION);
    }
    checkFields(root, FIELDS, "");
    if (!root.path("kind").asText().equals(KIND)) {
      throw refusal("has the kind " + root.path("kind") + ", and this plugin plans " + KIND);
    }
    name = root.path("policy").asText();
    checkParameters(root.path("parameters"));
    meanWorkMs = amount(root, "mean_work_ms", "");
    guessMs = amount(root, "guess_ms", "");
    for (Iterator<String> names = root.path("jobs").fieldNames(); names.hasNext(); ) {
      String job = names.next();
      jobs.put(job, profile(root.path("jobs").path(job), " of the job \"" + job + "\""));
    }
  }

  private void checkFields(JsonNode node, Set<String> fields, String where) throws PolicyException {
    for (String field : fields) {
      if (!node.has(field)) {
        throw refusal("lacks the field " + field + where);
      }
    }
    for (Iterator<String> names = node.fieldNames(); names.hasNext(); ) {
      String field = names.next();
      if (!fields.contains(field)) {
        throw refusal("has the unknown field " + field + where);
      }
    }
  }

  /** Remaining work alone is what this plugin plans by. */
  private void checkParameters(JsonNode parameters) throws PolicyException {
    for (Iterator<String> names = parameters.fieldNames(); names.hasNext(); ) {
      String parameter = names.next();
      JsonNode value = parameters.path(parameter);
      boolean isPlain = parameter.equals(PROBE)
          ? value.asDouble() < NO_PROBE
          : value.asDouble() == 0;
      if (!value.isNumber() || !isPlain) {
        throw refusal(
            "has the parameter " + parameter + " = " + value + "; this plugin plans srpt alone");
      }
    }
  }

  private double amount(JsonNode node, String field, String where) throws PolicyException {
    double value = node.path(field).asDouble(Double.NaN);
    if (!node.path(field).isNumber() || !(value >= 0) || Double.isInfinite(value)) {
      throw refusal(
          "has " + field + " = " + node.path(field) + where + ", not a number of at least 0");
    }
    return value;
  }

  private Profile profile(JsonNode job, String where) throws PolicyException {
    checkFields(job, JOB_FIELDS, where);
    amount(job, "work_ms", where);
    List<Profile.Stage> stages = new ArrayList<>();
    for (JsonNode stage : job.path("stages")) {
      checkFields(stage, STAGE_FIELDS, where);
      int tasks = stage.path("tasks").asInt(0);
      if (tasks < 1) {
        throw refusal("has a stage with " + stage.path("tasks") + " tasks" + where);
      }
      double taskMs = amount(stage, "task_ms", where);
      stages.add(new Profile.Stage(tasks, taskMs, parents(job, stage, where)));
    }
    if (stages.isEmpty()) {
      throw refusal("has no stages" + where);
    }
    return new Profile(stages);
  }

  private List<Integer> parents(JsonNode job, JsonNode stage, String where) throws PolicyException {
    List<Integer> parents = new ArrayList<>();
    for (JsonNode parent : stage.path("parents")) {
      if (!parent.isInt() || parent.asInt() < 0 || parent.asInt() >= job.path("stages").size()) {
        throw refusal("has a stage whose parent " + parent + " is no stage" + where);
      }
      parents.add(parent.asInt());
    }
    return parents;
  }
}
