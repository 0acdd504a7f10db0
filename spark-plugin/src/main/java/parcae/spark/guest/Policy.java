package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * How to plan, and estimates of recurring queries: a policy file, as `parcae export` writes it, or
 * what holds without one.
 */
final class Policy {
  static final String FORMAT = "parcae-policy";
  static final int VERSION = 3;
  /** The version before accounts; a guard of such a file is replaced by accounts. */
  private static final int GUARD_VERSION = 2;
  private static final String PLAIN = "srpt";
  private static final String RULE = "order-rule";
  private static final String NETWORK = "order-network";
  private static final String FORMULA = "formula";
  private static final Set<String> FIELDS = Set.of(
      "format", "version", "policy", "kind", "parameters", "mean_work_ms", "guess_ms", "jobs");
  private static final Set<String> ACCOUNT_FIELDS = Set.of("factor", "floor");
  private static final Set<String> JOB_FIELDS = Set.of("work_ms", "stages");
  private static final String SCAN_BYTES = "scan_bytes";
  private static final Set<String> STAGE_FIELDS = Set.of("tasks", "task_ms", "parents");
  /** What counts without a file until queries are learned: a task, and a query, in ms of a core. */
  private static final double PLAIN_TASK_MS = 1_000;
  private static final double PLAIN_WORK_MS = 100 * PLAIN_TASK_MS;
  private static final Ledgers.Terms PLAIN_ACCOUNT = new Ledgers.Terms(1.5, 0.1);

  private final Path file; // null: none
  private String name;
  private double meanWorkMs;
  private double guessMs;
  private Rule rule;
  private Formula formula;
  private Ledgers.Terms account;
  private final Map<String, Profile> jobs = new HashMap<>();

  private Policy(Path file) {
    this.file = file;
  }

  /**
   * Reads a policy file.
   *
   * @throws PolicyException the file cannot be read or is not valid
   */
  static Policy read(Path file) throws PolicyException {
    Policy policy = new Policy(file);
    try {
      policy.readRoot(new ObjectMapper().readTree(Files.readAllBytes(file)));
    } catch (JsonProcessingException error) {
      throw policy.refusal("is not JSON (" + error.getOriginalMessage() + ")");
    } catch (IOException error) {
      throw policy.refusal("cannot be read (" + error + ")");
    }
    return policy;
  }

  /** The policy without a file: the users' accounts over remaining work as it is learned. */
  static Policy plain() {
    Policy policy = new Policy(null);
    policy.name = "account";
    policy.account = PLAIN_ACCOUNT;
    policy.guessMs = PLAIN_TASK_MS;
    policy.meanWorkMs = PLAIN_WORK_MS;
    return policy;
  }

  /** The policy in words, for the log. */
  @Override
  public String toString() {
    return file == null
        ? name + " by what is learned while Spark runs"
        : name + " by " + file + ", which knows " + jobs.size() + " jobs";
  }

  String name() {
    return name;
  }

  /** The rule of the policy; null if it has a formula or serves by least remaining work. */
  Rule rule() {
    return rule;
  }

  /** The formula of the policy; null if it has none. */
  Formula formula() {
    return formula;
  }

  /** How much users' accounts count; null: not at all. */
  Ledgers.Terms account() {
    return account;
  }

  /** Mean work of a query, in ms of one core. */
  double meanWorkMs() {
    return meanWorkMs;
  }

  /** The estimated duration of a task of an unknown query, in ms. */
  double guessMs() {
    return guessMs;
  }

  /** The estimate of a recurring query; null if the file does not know the query. */
  Profile find(String job) {
    return jobs.get(job);
  }

  private PolicyException refusal(String what) {
    return new PolicyException(
        "the policy file " + file + " " + what + "; write one with `parcae export`");
  }

  private void readRoot(JsonNode root) throws PolicyException {
    if (!root.isObject()) {
      throw refusal("is no JSON object");
    }
    if (!root.path("format").asText().equals(FORMAT)) {
      throw refusal("is of another format than " + FORMAT);
    }
    int version = root.path("version").asInt();
    if (!root.path("version").isInt() || (version != VERSION && version != GUARD_VERSION)) {
      throw refusal(
          "has version " + root.path("version") + ", and this plugin reads versions "
              + GUARD_VERSION + " and " + VERSION);
    }
    Set<String> fields = new HashSet<>(FIELDS);
    fields.add(version == VERSION ? "account" : "guard");
    if (root.path("kind").asText().equals(NETWORK)) {
      fields.add("weights");
    }
    if (root.path("kind").asText().equals(FORMULA)) {
      fields.add("program");
    }
    checkFields(root, fields, "");
    account = version == VERSION ? account(root.path("account")) : accountOfGuard(root);
    name = root.path("policy").asText();
    meanWorkMs = amount(root, "mean_work_ms", "");
    guessMs = amount(root, "guess_ms", "");
    readPlan(root);
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

  private Ledgers.Terms account(JsonNode node) throws PolicyException {
    if (node.isNull()) {
      return null;
    }
    String where = " of the account";
    checkFields(node, ACCOUNT_FIELDS, where);
    double floor = amount(node, "floor", where);
    if (floor <= 0 || floor > 1) {
      throw refusal("has floor = " + floor + where + ", not a number above 0 and at most 1");
    }
    return new Ledgers.Terms(amount(node, "factor", where), floor);
  }

  private static Ledgers.Terms accountOfGuard(JsonNode root) {
    return root.path("guard").isNull() ? null : PLAIN_ACCOUNT;
  }

  /** Reads how to plan: the kind and its parameters. */
  private void readPlan(JsonNode root) throws PolicyException {
    String kind = root.path("kind").asText();
    if (!Set.of(PLAIN, RULE, NETWORK, FORMULA).contains(kind)) {
      throw refusal(
          "has the kind " + root.path("kind")
              + ", and this plugin plans " + PLAIN + ", " + RULE + ", " + NETWORK + " and "
              + FORMULA);
    }
    formula = kind.equals(FORMULA) ? formula(root.path("program")) : null;
    boolean isRule = kind.equals(RULE) || kind.equals(NETWORK);
    double[] theta = new double[isRule ? Rule.Parameter.values().length : 0];
    Set<String> names = new HashSet<>();
    for (int i = 0; i < theta.length; i++) {
      names.add(Rule.Parameter.values()[i].name());
    }
    JsonNode parameters = root.path("parameters");
    checkFields(parameters, names, " of the parameters");
    for (int i = 0; i < theta.length; i++) {
      theta[i] = number(parameters, Rule.Parameter.values()[i].name(), " of the parameters");
    }
    Network network = kind.equals(NETWORK) ? new Network(weights(root.path("weights"))) : null;
    rule = theta.length == 0 ? null : new Rule(theta, meanWorkMs, network);
  }

  private Formula formula(JsonNode program) throws PolicyException {
    List<String> words = new ArrayList<>();
    program.forEach(word -> words.add(word.asText()));
    try {
      return new Formula(words);
    } catch (IllegalArgumentException error) {
      throw refusal("has a formula that is none (" + error.getMessage() + ")");
    }
  }

  private double[] weights(JsonNode node) throws PolicyException {
    if (node.size() != Network.WEIGHTS) {
      throw refusal("has " + node.size() + " weights, and a network has " + Network.WEIGHTS);
    }
    double[] weights = new double[Network.WEIGHTS];
    for (int i = 0; i < weights.length; i++) {
      if (!node.path(i).isNumber() || !Double.isFinite(node.path(i).asDouble())) {
        throw refusal("has the weight " + node.path(i) + ", not a finite number");
      }
      weights[i] = node.path(i).asDouble();
    }
    return weights;
  }

  private double number(JsonNode node, String field, String where) throws PolicyException {
    double value = node.path(field).asDouble();
    if (!node.path(field).isNumber() || Double.isInfinite(value) || Double.isNaN(value)) {
      throw refusal("has " + field + " = " + node.path(field) + where + ", not a finite number");
    }
    return value;
  }

  private double amount(JsonNode node, String field, String where) throws PolicyException {
    double value = number(node, field, where);
    if (value < 0) {
      throw refusal("has " + field + " = " + value + where + ", not a number of at least 0");
    }
    return value;
  }

  private Profile profile(JsonNode job, String where) throws PolicyException {
    Set<String> fields = new HashSet<>(JOB_FIELDS);
    if (job.has(SCAN_BYTES)) { // not of a query that reads no files
      fields.add(SCAN_BYTES);
    }
    checkFields(job, fields, where);
    amount(job, "work_ms", where);
    double bytes = job.has(SCAN_BYTES) ? amount(job, SCAN_BYTES, where) : 0;
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
    checkOrder(stages, where);
    return new Profile(stages, bytes);
  }

  /** Refuses stages that wait for each other, since they would never run. */
  private void checkOrder(List<Profile.Stage> stages, String where) throws PolicyException {
    Set<Integer> done = new HashSet<>();
    int before = -1;
    while (before < done.size()) {
      before = done.size();
      for (int i = 0; i < stages.size(); i++) {
        if (done.containsAll(stages.get(i).parents)) {
          done.add(i);
        }
      }
    }
    if (done.size() < stages.size()) {
      throw refusal("has stages that wait for each other" + where);
    }
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
