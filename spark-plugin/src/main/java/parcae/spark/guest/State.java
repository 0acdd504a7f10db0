package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps what is learned of queries in a file, which several drivers may share and `parcae learn`
 * writes, too: each adds its own runs to those that are there. A file that is no such file stays as
 * it is, and the log says so once.
 */
final class State {
  static final String FILE = "spark.parcae.state";
  private static final Logger LOG = LoggerFactory.getLogger(State.class);
  private static final String EVERY = "spark.parcae.stateMs";
  private static final int EVERY_MS = 300_000;
  private static final String FORMAT = "parcae-state";
  private static final int VERSION = 1;
  static final int MOST_BYTES = 64 << 20;
  /** Stages of all queries in a file; queries that ran longest ago are left out. */
  private static final int MOST_STAGES = 100_000;
  /** A driver has the file for so long at most. */
  private static final int MOST_WAITS = 100;
  private static final long WAIT_MS = 50;
  private static final long STOP_MS = 15_000;
  private static final ObjectMapper JSON = new ObjectMapper();

  private final String name;
  private final SharedFile file;
  private final Rounds rounds;
  private final Learned learned;
  private final Thread thread = new Thread(this::keep, "parcae-state");
  private String problem = "";

  /**
   * Reads the settings.
   *
   * @param learned what the planner learns
   * @throws PolicyException a setting is not valid
   */
  State(SparkConf conf, Configuration hadoop, Learned learned) throws PolicyException {
    this.learned = learned;
    name = conf.get(FILE, "");
    file = new SharedFile(name, hadoop);
    rounds = new Rounds(LinkSettings.milliseconds(conf, EVERY, EVERY_MS));
  }

  /** Reads the file, and writes it again and again, on a separate thread. */
  void start() {
    if (!name.isEmpty()) {
      thread.setDaemon(true);
      thread.start();
    }
  }

  /** Writes the file for the last time. */
  void stop() {
    rounds.stop();
    try {
      thread.join(STOP_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private void keep() {
    int known = merge();
    LOG.info("parcae: {} names of queries are known from {}", known, name);
    boolean goesOn = true;
    while (goesOn) {
      goesOn = rounds.await();
      save(); // also for the last time
    }
  }

  /** Takes the runs that the file has; returns how many names there are, -1 if it has none. */
  private int merge() {
    try {
      int found = understand(file.readIfThere(MOST_BYTES));
      problem = "";
      return found;
    } catch (PolicyException error) {
      complain(error.getMessage());
    } catch (IOException | RuntimeException error) {
      complain(FILE + " " + name + " cannot be read (" + error + ")");
    }
    return -1;
  }

  /** Adds what was learned to the file, and takes what other drivers have added. */
  void save() {
    try {
      for (int waits = 0; !file.claim(); waits++) {
        if (waits == MOST_WAITS) {
          file.release(); // of a driver that was killed
        }
        Thread.sleep(WAIT_MS);
      }
      try {
        if (merge() >= 0) {
          byte[] content = text();
          if (!Arrays.equals(content, file.readIfThere(MOST_BYTES))) {
            file.replace(content);
          }
        }
      } finally {
        file.release();
      }
    } catch (IOException | RuntimeException error) {
      complain(FILE + " " + name + " cannot be written (" + error + ")");
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private void complain(String what) {
    if (!what.equals(problem)) {
      problem = what;
      LOG.warn("parcae: {}: what is learned is not kept", what.replaceAll("\\s+", " "));
    }
  }

  /** The file's content: all that is known, names in alphabetical order. */
  private byte[] text() throws IOException {
    ObjectNode root = JSON.createObjectNode().put("format", FORMAT).put("version", VERSION);
    ObjectNode queries = root.putObject("queries");
    for (Map.Entry<String, Learned.Known> each : learned.newest(MOST_STAGES).entrySet()) {
      ObjectNode query = queries.putObject(each.getKey());
      ArrayNode runs = query.putArray("runs");
      for (Learned.Run run : each.getValue().runs) {
        runs.addArray().add(run.endedMs).add(run.bytes).add(run.workMs);
      }
      ArrayNode stages = query.putArray("stages");
      for (Profile.Stage stage : each.getValue().stages.stages) {
        ObjectNode made = stages.addObject().put("tasks", stage.tasks).put("task_ms", stage.taskMs);
        ArrayNode parents = made.putArray("parents");
        stage.parents.forEach(parents::add);
      }
    }
    return JSON.writeValueAsBytes(root);
  }

  private int understand(byte[] content) throws PolicyException {
    if (content.length == 0) {
      return 0; // not there, or just created
    }
    if (content.length >= MOST_BYTES) {
      throw refusal("has more than " + MOST_BYTES + " bytes");
    }
    JsonNode root;
    try {
      root = JSON.readTree(content);
    } catch (JsonProcessingException error) {
      throw refusal("is not JSON (" + error.getOriginalMessage() + ")");
    } catch (IOException error) {
      throw refusal("is not JSON (" + error + ")");
    }
    if (!root.path("format").asText().equals(FORMAT) || root.path("version").asInt() != VERSION) {
      throw refusal("is not of the format " + FORMAT + ", version " + VERSION);
    }
    int known = 0;
    for (Iterator<String> names = root.path("queries").fieldNames(); names.hasNext(); ) {
      String query = names.next();
      learned.merge(query, known(root.path("queries").path(query), " of \"" + query + "\""));
      known++;
    }
    return known;
  }

  private Learned.Known known(JsonNode query, String where) throws PolicyException {
    Learned.Known known = new Learned.Known();
    for (JsonNode run : query.path("runs")) {
      double bytes = amount(run.path(1), "the bytes" + where);
      double workMs = amount(run.path(2), "the work" + where);
      known.runs.add(new Learned.Run((long) amount(run.path(0), "the end" + where), bytes, workMs));
    }
    List<Profile.Stage> stages = new ArrayList<>();
    for (JsonNode stage : query.path("stages")) {
      List<Integer> parents = new ArrayList<>();
      for (JsonNode parent : stage.path("parents")) {
        if (!parent.isInt() || parent.asInt() < 0 || parent.asInt() >= stages.size()) {
          throw refusal("has a stage whose parent " + parent + " is no stage before it" + where);
        }
        parents.add(parent.asInt());
      }
      int tasks = (int) Math.max(1, amount(stage.path("tasks"), "the tasks" + where));
      double taskMs = amount(stage.path("task_ms"), "the task_ms" + where);
      stages.add(new Profile.Stage(tasks, taskMs, parents));
    }
    if (known.runs.isEmpty() || stages.isEmpty()) {
      throw refusal("lacks runs or stages" + where);
    }
    known.stages = new Profile(stages);
    return known;
  }

  private double amount(JsonNode value, String what) throws PolicyException {
    if (!value.isNumber() || !(value.asDouble() >= 0) || Double.isInfinite(value.asDouble())) {
      throw refusal("has " + value + " as " + what + ", not a number of at least 0");
    }
    return value.asDouble();
  }

  private PolicyException refusal(String what) {
    return new PolicyException(FILE + " " + name + " " + what);
  }
}
