package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Appends every change of the order to a file, as one line of JSON each. It shows users which query
 * goes first and why. If the file cannot be written, only the trace ends.
 */
final class Trace {
  private static final Logger LOG = LoggerFactory.getLogger(Trace.class);

  private final ObjectMapper json = new ObjectMapper();
  private final Path file;
  private boolean isOn;
  private String last = "[]";

  /** Takes the path of the file, which may exist already; empty for no trace. */
  Trace(String file) {
    this.file = Path.of(file);
    isOn = !file.isEmpty();
  }

  /** The planner's name of a query, the source of its estimate, and its user. */
  static final class Label {
    /** The policy file, earlier runs, the bytes of scanned files, or only a typical task. */
    enum Source { POLICY, LEARNED, BYTES, UNKNOWN }

    final String name;
    final Source source;
    final String user;
    private int asked;
    private int priority;
    private boolean hasAsked;

    Label(String name, Source source, String user) {
      this.name = name;
      this.source = source;
      this.user = user;
    }

    /** A job of the query asks for a priority; the largest of all jobs counts. */
    void asks(int newAsked, int granted) {
      asked = hasAsked ? Math.max(asked, newAsked) : newAsked;
      priority = hasAsked ? Math.max(priority, granted) : granted;
      hasAsked = true;
    }

    /** The priority that the query asks for. */
    int asked() {
      return asked;
    }

    /** The priority that it gets. */
    int priority() {
      return priority;
    }
  }

  /**
   * Writes the order unless it equals that of the last line.
   *
   * @param labels the label of a query by its key, or null if it has none
   */
  synchronized void write(Order order, Function<String, Label> labels) {
    if (!isOn) {
      return;
    }
    try {
      String jobs = jobs(order.tiers(), labels);
      if (!jobs.equals(last)) {
        String line = "{\"clock_ms\":" + System.currentTimeMillis() + ",\"jobs\":" + jobs + "}\n";
        byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
        Files.write(file, bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        last = jobs;
      }
    } catch (IOException error) {
      isOn = false;
      LOG.warn("parcae: the trace ends, orders go on: {} cannot be written ({})", file, error);
    }
  }

  private String jobs(Map<String, Double> tiers, Function<String, Label> labels)
      throws JsonProcessingException {
    ArrayNode jobs = json.createArrayNode();
    List<Map.Entry<String, Double>> sorted = tiers.entrySet().stream()
        .sorted(Comparator.comparingDouble(Map.Entry::getValue))
        .collect(Collectors.toList());
    for (Map.Entry<String, Double> each : sorted) {
      ObjectNode job = jobs.addObject().put("key", each.getKey());
      Label label = labels.apply(each.getKey());
      if (label != null) {
        job.put("name", label.name).put("known", label.source.name().toLowerCase(Locale.ROOT));
        job.put("user", label.user);
        if (label.asked() != 0) {
          job.put("asked", label.asked()).put("priority", label.priority());
        }
      }
      job.put("tier", each.getValue());
    }
    return json.writeValueAsString(jobs);
  }
}
