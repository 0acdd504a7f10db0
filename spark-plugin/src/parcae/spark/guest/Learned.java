package parcae.spark.guest;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Profiles of queries that the policy file does not know, from their runs in this application. */
final class Learned {
  private static final int MAX_NAMES = 10_000;
  private static final int MAX_RUNS = 31;

  // In order of access: the name that was unused for longest is dropped first.
  private final Map<String, Runs> byName = new LinkedHashMap<>(16, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Runs> eldest) {
      return size() > MAX_NAMES;
    }
  };

  /** The latest runs of one name. */
  private static final class Runs {
    final Deque<Double> worksMs = new ArrayDeque<>();
    Profile profile;
  }

  /** Adds a run that succeeded. */
  void observe(String name, Profile run) {
    Runs runs = byName.computeIfAbsent(name, key -> new Runs());
    runs.worksMs.addLast(run.workMs);
    if (runs.worksMs.size() > MAX_RUNS) {
      runs.worksMs.removeFirst();
    }
    List<Double> sorted = new ArrayList<>(runs.worksMs);
    Collections.sort(sorted);
    int middle = sorted.size() / 2;
    double median = sorted.size() % 2 == 1
        ? sorted.get(middle)
        : (sorted.get(middle - 1) + sorted.get(middle)) / 2;
    runs.profile = run.scaledTo(median);
  }

  /** The stages of the last run, scaled to the median work of the runs; null without a run. */
  Profile find(String name) {
    Runs runs = byName.get(name);
    return runs == null ? null : runs.profile;
  }
}
