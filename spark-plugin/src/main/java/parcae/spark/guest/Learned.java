package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.function.ToDoubleFunction;

/**
 * What is known of queries from their runs: a query that ran before, also at another scale of its
 * tables, is estimated by its runs, and any other by the bytes that it reads. The latter is
 * `parcae.workloads.guess` in Java. Several threads may use it.
 */
final class Learned {
  static final int MAX_RUNS = 9;
  private static final int MAX_NAMES = 10_000;
  /** A regression over fewer shapes than this is not reliable. */
  private static final int MIN_SHAPES = 5;
  /** What a query costs however little it reads, as so many bytes more. */
  private static final double OVERHEAD_BYTES = 5e6;
  /** Until so many are known, a core takes so many ms for a byte: 20 MB a second. */
  private static final double ASSUMED_MS = 5e-5;
  private static final double LEAST_VARIANCE = 1e-9;
  /** The newest run last; the rest makes the order the same in every driver. */
  private static final Comparator<Run> ORDER = Comparator
      .comparingLong((Run run) -> run.endedMs)
      .thenComparingDouble(run -> run.workMs)
      .thenComparingDouble(run -> run.bytes);

  // In order of access: the name that was unused for longest is dropped first.
  private final Map<String, Known> byName = new LinkedHashMap<>(16, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Known> eldest) {
      return size() > MAX_NAMES;
    }
  };
  /** Of the line log work = a + b x log bytes: a, b; null when it must be computed anew. */
  private double[] line;

  /** A run: when it ended, the bytes that it read (0: not known), and its work in ms of a core. */
  static final class Run {
    final long endedMs;
    final double bytes;
    final double workMs;

    Run(long endedMs, double bytes, double workMs) {
      this.endedMs = endedMs;
      this.bytes = bytes;
      this.workMs = workMs;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Run && ORDER.compare(this, (Run) other) == 0;
    }

    @Override
    public int hashCode() {
      return Long.hashCode(endedMs);
    }
  }

  /** The latest runs of one name, the newest last, and the stages of the newest. */
  static final class Known {
    final List<Run> runs = new ArrayList<>();
    Profile stages;

    /** Adds a run that it does not have yet; returns whether it is the newest now. */
    private boolean add(Run run) {
      if (runs.stream().anyMatch(run::equals)) {
        return false;
      }
      runs.add(run);
      runs.sort(ORDER);
      if (runs.size() > MAX_RUNS) {
        runs.remove(0);
      }
      return runs.get(runs.size() - 1) == run;
    }

    private long endedMs() {
      return runs.get(runs.size() - 1).endedMs;
    }

    /** The median of an amount over the runs. */
    double median(ToDoubleFunction<Run> amount) {
      double[] sorted = runs.stream().mapToDouble(amount).sorted().toArray();
      int middle = sorted.length / 2;
      return sorted.length % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
    }
  }

  /** Adds a run that succeeded. */
  synchronized void observe(String name, Profile stages, Run run) {
    Known known = byName.computeIfAbsent(name, key -> new Known());
    if (known.add(run)) {
      known.stages = stages;
    }
    line = null;
  }

  /** Adds what another driver knows of a name: the newest runs of both remain. */
  synchronized void merge(String name, Known other) {
    other.runs.forEach(run -> observe(name, other.stages, run));
  }

  /** What is known of the names that ran last, up to so many stages in all; in order of names. */
  synchronized SortedMap<String, Known> newest(int mostStages) {
    List<Map.Entry<String, Known>> all = new ArrayList<>(byName.entrySet());
    all.sort(Comparator
        .comparingLong((Map.Entry<String, Known> each) -> -each.getValue().endedMs())
        .thenComparing(Map.Entry::getKey));
    SortedMap<String, Known> found = new TreeMap<>();
    int stages = 0;
    for (Map.Entry<String, Known> each : all) {
      stages += each.getValue().stages.stages.size();
      if (stages > mostStages) {
        break;
      }
      Known copy = new Known();
      copy.runs.addAll(each.getValue().runs);
      copy.stages = each.getValue().stages;
      found.put(each.getKey(), copy);
    }
    return found;
  }

  /**
   * The stages of the last run, scaled to the median work of the runs at so many bytes.
   *
   * @param bytes what the query reads; 0: not known
   * @return null without a run
   */
  synchronized Profile find(String name, double bytes) {
    Known known = byName.get(name);
    return known == null
        ? null
        : known.stages.scaledTo(known.median(run -> run.workMs * ratio(bytes, run.bytes)));
  }

  /** How much more work a query has at other bytes; 1 if one of them is not known. */
  static double ratio(double bytes, double knownBytes) {
    return bytes > 0 && knownBytes > 0
        ? (bytes + OVERHEAD_BYTES) / (knownBytes + OVERHEAD_BYTES)
        : 1;
  }

  /** The work of a query that never ran, in ms of a core, by the bytes that it reads (above 0). */
  synchronized double priorMs(double bytes) {
    if (line == null) {
      line = fitted();
    }
    double all = bytes + OVERHEAD_BYTES;
    return line.length == 0 ? ASSUMED_MS * all : Math.exp(line[0] + line[1] * Math.log(all));
  }

  /** The least-squares line through the known shapes; empty if there are too few. */
  private double[] fitted() {
    double count = 0;
    double x = 0;
    double y = 0;
    double xx = 0;
    double xy = 0;
    for (Map.Entry<String, Known> each : byName.entrySet()) {
      double bytes = each.getValue().median(run -> run.bytes);
      if (bytes > 0 && each.getKey().startsWith(Fingerprint.SHAPE)) {
        double logBytes = Math.log(bytes + OVERHEAD_BYTES);
        double logWork = Math.log(Math.max(1, each.getValue().median(run -> run.workMs)));
        count++;
        x += logBytes;
        y += logWork;
        xx += logBytes * logBytes;
        xy += logBytes * logWork;
      }
    }
    if (count < MIN_SHAPES) {
      return new double[0];
    }
    double variance = xx / count - x / count * (x / count);
    double covariance = xy / count - x / count * (y / count);
    // What reads twice as much has neither less work nor more than twice as much.
    double slope =
        variance > LEAST_VARIANCE ? Math.max(0, Math.min(1, covariance / variance)) : 0;
    return new double[] {y / count - slope * x / count, slope};
  }
}
