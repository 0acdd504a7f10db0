package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The mode of the plugin and its experiment, if any: from the settings and, while Spark runs, from
 * a small JSON file that is read again and again.
 *
 * <p>A file that cannot be read or understood changes nothing, and the log says so once.
 */
final class Control {
  private static final Logger LOG = LoggerFactory.getLogger(Control.class);
  private static final String MODE = "spark.parcae.mode";
  private static final String FILE = "spark.parcae.control";
  private static final String EVERY = "spark.parcae.controlMs";
  private static final String FIELD = "mode";
  private static final String EXPERIMENT = "experiment";
  private static final int EVERY_MS = 2_000;
  private static final int MOST_BYTES = 1 << 20;
  private static final ObjectMapper JSON =
      new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

  /** What the plugin does with its orders. */
  enum Mode {
    /** None applies. What they need is kept up to date, so that switching on needs no time. */
    OFF,
    /** None applies; the trace has them. */
    OBSERVE,
    /** They apply. */
    ON;

    private static Mode of(String text, String where) throws PolicyException {
      for (Mode mode : values()) {
        if (mode.name().toLowerCase(Locale.ROOT).equals(text)) {
          return mode;
        }
      }
      throw new PolicyException(where + " is \"" + text + "\"; set it to observe, on or off");
    }
  }

  /** Takes what the settings or the file want. */
  interface Handler {
    /** Takes a mode, the experiment while it is on (null for none), and where both are from. */
    void accept(Mode mode, Experiment experiment, String source);
  }

  private final String file;
  private final Rounds rounds;
  private final Mode configured;
  private final Configuration hadoop;
  private byte[] content = {};
  private String problem = "";
  private Mode mode;
  private Experiment experiment;
  private Admission.Limits limits = Admission.Limits.NONE;
  private Consumer<Admission.Limits> limitHandler = wanted -> { };
  private final Weights weights;

  /**
   * Reads the settings.
   *
   * @param conf Spark's settings
   * @param hadoop those of Hadoop's file systems
   * @param weights takes the weights of users in the file
   * @throws PolicyException a setting is not valid
   */
  Control(SparkConf conf, Configuration hadoop, Weights weights) throws PolicyException {
    this.hadoop = hadoop;
    this.weights = weights;
    file = conf.get(FILE, "");
    configured = Mode.of(conf.get(MODE, "on"), MODE);
    mode = configured;
    rounds = new Rounds(LinkSettings.milliseconds(conf, EVERY, EVERY_MS));
  }

  /** Sets who is told how many queries may be open at once. */
  Control limiting(Consumer<Admission.Limits> handler) {
    limitHandler = handler;
    return this;
  }

  /** Gives the handler what is wanted now, and each change on a separate thread. */
  void start(Handler handler) {
    handler.accept(mode, null, MODE);
    if (!file.isEmpty()) {
      follow(handler);
      Thread thread = new Thread(() -> {
        while (rounds.await()) {
          follow(handler);
        }
      }, "parcae-control");
      thread.setDaemon(true);
      thread.start();
    }
  }

  /** Ends the thread. */
  void stop() {
    rounds.stop();
  }

  /** Reads the file, and hands over what is new in it. */
  private void follow(Handler handler) {
    try {
      byte[] read = new SharedFile(file, hadoop).read(MOST_BYTES);
      if (!Arrays.equals(read, content)) {
        content = read;
        JsonNode root = understand(read);
        String where = FILE + " " + file + ": ";
        Mode wanted =
            root.has(FIELD) ? Mode.of(root.path(FIELD).asText(), where + FIELD) : configured;
        Experiment tried = root.has(EXPERIMENT)
            ? Experiment.of(root.path(EXPERIMENT), where + EXPERIMENT)
            : null;
        Admission.Limits most = Admission.Limits.read(root, where);
        Map<String, Double> byUser = Weights.read(root, where);
        problem = "";
        weights.set(byUser);
        if (!most.equals(limits)) {
          limits = most;
          limitHandler.accept(most);
        }
        if (wanted != mode || !Objects.equals(tried, experiment)) {
          mode = wanted;
          experiment = tried;
          handler.accept(wanted, tried, file);
        }
      }
    } catch (PolicyException error) {
      complain(error.getMessage());
    } catch (IOException | RuntimeException error) {
      content = new byte[0]; // what was wrong is read anew once the file can be read again
      complain(FILE + " " + file + " cannot be read (" + error + ")");
    }
  }

  private void complain(String what) {
    if (!what.equals(problem)) {
      problem = what;
      LOG.warn("parcae: {}: nothing changes", what.replaceAll("\\s+", " "));
    }
  }

  private JsonNode understand(byte[] bytes) throws PolicyException {
    JsonNode root;
    try {
      root = JSON.readTree(bytes);
    } catch (IOException error) {
      String why = error instanceof JsonProcessingException
          ? ((JsonProcessingException) error).getOriginalMessage()
          : error.toString();
      throw refusal("is not JSON (" + why + ")");
    }
    if (!root.isObject()) {
      throw refusal("is no JSON object");
    }
    TreeSet<String> unknown = new TreeSet<>();
    for (Iterator<String> names = root.fieldNames(); names.hasNext(); ) {
      unknown.add(names.next());
    }
    List<String> known =
        List.of(FIELD, EXPERIMENT, Admission.Limits.ALL, Admission.Limits.USER, Weights.FIELD);
    unknown.removeAll(known);
    if (!unknown.isEmpty()) {
      throw refusal("has unknown fields (" + String.join(", ", unknown) + "); known are "
          + String.join(", ", known));
    }
    return root;
  }

  private PolicyException refusal(String what) {
    return new PolicyException(FILE + " " + file + " " + what);
  }
}
