package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A query that has not ended: what was foretold of it, what was seen, and what is left.
 *
 * <p>The estimate is that of `parcae.cluster.kernels.estimates`, kept plausible: a query that
 * outlives its estimate has something left. One thread at a time.
 */
final class OpenQuery {
  /** The prior belief in the foretold durations counts as so many finished tasks. */
  static final double PRIOR_TASKS = 3;
  /** At least this share of what was done is thought to be left. */
  static final double LEAST_SHARE = 0.05;
  private static final int MAX_REMEMBERED = 1_000;

  private final List<String> names;
  private final Profile profile;
  private final double otherTaskMs;
  private final boolean[] isMatched;
  private final Map<Integer, Stage> stages = new HashMap<>();
  private final Map<Integer, Stage> open = new LinkedHashMap<>();
  private final Set<Integer> jobs = new HashSet<>();
  private final List<Stage> ran = new ArrayList<>();
  private Trace.Label label;
  private boolean hasFailed;
  private double unseenMs;
  private int numFinished;
  private double executedMs;
  private double expectedMs;

  /** A stage as it was listed, and how it stands once it is submitted. */
  private static final class Stage {
    final List<Integer> parents;
    double taskMs;
    boolean isSubmitted;
    int attempt;
    int tasks;
    int started;
    int finished;
    double executedMs;

    Stage(int tasks, double taskMs, List<Integer> parents) {
      this.tasks = tasks;
      this.taskMs = taskMs;
      this.parents = parents;
    }
  }

  /**
   * A query of which nothing has run.
   *
   * @param names under which its run is learned
   * @param profile what is foretold of it, or null
   * @param guessMs what a task takes where nothing is foretold
   */
  OpenQuery(List<String> names, Profile profile, double guessMs) {
    this.names = names;
    this.profile = profile;
    otherTaskMs = profile == null ? guessMs : profile.taskMs;
    isMatched = new boolean[profile == null ? 0 : profile.stages.size()];
    unseenMs = profile == null ? 0 : profile.workMs;
  }

  /** Says what the query is called, and where its profile comes from. */
  OpenQuery labelled(String name, Trace.Label.Source source) {
    label = new Trace.Label(name, source);
    return this;
  }

  Trace.Label label() {
    return label;
  }

  List<String> names() {
    return names;
  }

  Set<Integer> jobs() {
    return jobs;
  }

  Set<Integer> stageIds() {
    return stages.keySet();
  }

  void jobFailed() {
    hasFailed = true;
  }

  /** A Spark job lists a stage; it may turn out that it need not run. */
  void listed(int stageId, int tasks, List<Integer> parents) {
    if (!stages.containsKey(stageId)) {
      Stage stage = new Stage(tasks, otherTaskMs, parents);
      stages.put(stageId, stage);
      open.put(stageId, stage);
    }
  }

  /** A stage runs, or runs again. */
  void submitted(int stageId, int attempt, int tasks) {
    listed(stageId, tasks, List.of());
    Stage stage = stages.get(stageId);
    if (!stage.isSubmitted) {
      stage.isSubmitted = true;
      stage.taskMs = foretell(tasks);
      ran.add(stage);
      skipAbove(stage);
    } else if (attempt > stage.attempt) {
      stage.taskMs = stage.finished > 0 ? stage.executedMs / stage.finished : stage.taskMs;
      stage.started = 0;
      stage.finished = 0;
      stage.executedMs = 0;
    }
    stage.attempt = attempt;
    stage.tasks = tasks;
    open.put(stageId, stage);
  }

  /** What a task of the stage takes: by the stage of the profile that is most like it, once. */
  private double foretell(int tasks) {
    int best = -1;
    for (int pass = 0; pass < 2 && best < 0; pass++) { // first those whose parents have been seen
      for (int i = 0; i < isMatched.length; i++) {
        List<Integer> parents = profile.stages.get(i).parents;
        boolean isNext = pass == 1 || parents.stream().allMatch(p -> isMatched[p]);
        if (!isMatched[i] && isNext && (best < 0 || unlike(i, tasks) < unlike(best, tasks))) {
          best = i;
        }
      }
    }
    if (best < 0) {
      return otherTaskMs;
    }
    isMatched[best] = true;
    Profile.Stage found = profile.stages.get(best);
    unseenMs = Math.max(0, unseenMs - found.tasks * found.taskMs);
    return found.taskMs;
  }

  private double unlike(int index, int tasks) {
    return Math.abs(Math.log((double) profile.stages.get(index).tasks / Math.max(1, tasks)));
  }

  /** Stages above one that runs have their output, or ran: those that did not run will not. */
  private void skipAbove(Stage stage) {
    List<Integer> above = new ArrayList<>(stage.parents);
    while (!above.isEmpty()) {
      int id = above.remove(above.size() - 1);
      Stage parent = stages.get(id);
      if (parent != null && !parent.isSubmitted && open.remove(id) != null) {
        above.addAll(parent.parents);
      }
    }
  }

  void taskStarted(int stageId, int attempt) {
    Stage stage = open.get(stageId);
    if (stage != null && stage.attempt == attempt && stage.started < stage.tasks) {
      stage.started++;
    }
  }

  void taskSucceeded(int stageId, int attempt, double tookMs) {
    Stage stage = stages.get(stageId);
    if (stage == null || stage.attempt != attempt || stage.finished >= stage.tasks) {
      return;
    }
    stage.finished++;
    stage.started = Math.max(stage.started, stage.finished);
    stage.executedMs += tookMs;
    numFinished++;
    executedMs += tookMs;
    expectedMs += stage.taskMs;
  }

  void taskFailed(int stageId, int attempt) {
    Stage stage = open.get(stageId);
    if (stage != null && stage.attempt == attempt && stage.started > stage.finished) {
      stage.started--;
    }
  }

  /** A stage is complete, or is not needed any more. */
  void closed(int stageId) {
    open.remove(stageId);
  }

  /** Factor on the foretold durations that finished tasks suggest: 1 before any has finished. */
  double correction() {
    if (numFinished == 0 || expectedMs <= 0) {
      return 1;
    }
    return (numFinished * executedMs / expectedMs + PRIOR_TASKS) / (numFinished + PRIOR_TASKS);
  }

  /** Estimated work that is left, in ms of one core, &gt;= 0. */
  double remainingMs() {
    double factor = correction();
    double unstartedMs = unseenMs;
    double knownMs = 0;
    for (Stage stage : open.values()) {
      if (stage.isSubmitted) {
        double nowMs = stage.finished > 0
            ? stage.executedMs / stage.finished
            : factor * stage.taskMs;
        unstartedMs += (stage.tasks - stage.started) * stage.taskMs;
        knownMs += (stage.tasks - stage.finished) * nowMs;
      } else if (profile == null) { // else it is among the stages that were foretold
        unstartedMs += stage.tasks * stage.taskMs;
        knownMs += stage.tasks * factor * stage.taskMs;
      }
    }
    return Math.max(Math.max(factor * unstartedMs, knownMs), LEAST_SHARE * executedMs);
  }

  /** What is to be foretold of the next run; null if this one did not end well. */
  Profile run() {
    if (hasFailed || numFinished == 0) {
      return null;
    }
    List<Profile.Stage> found = new ArrayList<>();
    for (Stage stage : ran.subList(0, Math.min(ran.size(), MAX_REMEMBERED))) {
      if (stage.finished > 0) {
        found.add(new Profile.Stage(stage.tasks, stage.executedMs / stage.finished, List.of()));
      }
    }
    return found.isEmpty() ? null : new Profile(found);
  }
}
