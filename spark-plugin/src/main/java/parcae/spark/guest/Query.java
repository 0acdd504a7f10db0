package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A query as the planner knows it: its expected stages and the stages that Spark has submitted.
 *
 * <p>A profile gives the expected stages. A stage that runs takes the row of the most similar
 * expected stage; if there is none, it gets a new row at the end. Stages that did not run and will
 * not run are removed. Only one thread may use a query at a time.
 */
final class Query implements Following.OpenQuery {
  /** In place of the expected work, before the first stages are listed. */
  static final double NOT_YET = -1;
  private static final int MAX_REMEMBERED = 1_000; // stages of a learned profile
  private static final double OTHER_SCALE = 1.5; // more than this many times the bytes

  private final List<String> names;
  private final boolean hasProfile;
  private final double otherTaskMs;
  private final List<StageRow> rows = new ArrayList<>();
  private final Map<Integer, StageRow> rowOf = new HashMap<>();
  private final Map<Integer, List<Integer>> parentsOf = new HashMap<>(); // as listed by Spark
  private final Set<Integer> jobs = new HashSet<>(); // Spark jobs that have not ended
  private Trace.Label label;
  private boolean hasFailed;
  private double bytes; // that it reads; 0 if not known
  private boolean isScaled; // the profile's stages are those of another scale
  private boolean isReshaped; // derived fields must be computed again

  final long arrivalMs;
  boolean isComplete;
  double priorMs; // its work as the bytes that it reads foretell it; 0 if there is a profile

  // What is watched; see `QueryView`.
  long servedMs; // when a stage was submitted, or a task started or ended, for the last time
  double expectedMs = NOT_YET; // the work that was expected at first

  // The query in the virtual run; see `FairRun`.
  boolean hasJoined;
  boolean isExact; // its work is known exactly, since the real run of the query is complete
  boolean hasEnded;
  int numLeft; // stages that have not ended
  double totalMs; // work
  double leftMs; // remaining work
  double pathMs; // remaining critical path
  double wanted; // cores that it can use
  double rate; // cores that it has
  double endMs; // time of its end; an estimate until it has ended

  // The query in the accounts; see `Ledgers`.
  Accounts accounts;
  Accounts.Account account;
  double taskCores = 1; // of the task that started last
  double waiting; // cores that its waiting tasks could take

  boolean isChanged = true; // since `remainingMs` was computed
  double remainingMs;

  // The order that is being computed.
  double tier;
  int limit;

  /**
   * Creates a query before any task of it has run.
   *
   * @param names the names under which its run is learned
   * @param profile the estimate of the query, or null if there is none
   * @param guessMs estimated duration of a task if there is no profile
   * @param arrivalMs when the query arrived, in ms
   */
  Query(List<String> names, Profile profile, double guessMs, long arrivalMs) {
    this.names = names;
    this.arrivalMs = arrivalMs;
    servedMs = arrivalMs;
    hasProfile = profile != null;
    otherTaskMs = hasProfile ? profile.taskMs : guessMs;
    if (hasProfile) {
      for (Profile.Stage stage : profile.stages) {
        add(new StageRow(StageRow.EXPECTED, stage.tasks, stage.taskMs));
      }
      for (int i = 0; i < profile.stages.size(); i++) {
        for (int parent : profile.stages.get(i).parents) {
          rows.get(i).parents.add(rows.get(parent));
        }
      }
    }
  }

  /** Sets the name of the query and the source of its profile. */
  Query labelled(Trace.Label newLabel) {
    label = newLabel;
    return this;
  }

  boolean hasProfile() {
    return hasProfile;
  }

  double bytes() {
    return bytes;
  }

  /**
   * Sets the bytes that the query reads.
   *
   * @param ratio how much more work its stages have than was thought so far
   */
  void reads(double newBytes, double ratio) {
    bytes = newBytes;
    isScaled |= Math.abs(Math.log(ratio)) > Math.log(OTHER_SCALE);
    for (StageRow row : rows) {
      if (hasProfile && !row.isSubmitted) {
        row.taskMs *= ratio;
        isReshaped = true;
      }
    }
  }

  Trace.Label label() {
    return label;
  }

  List<String> names() {
    return names;
  }

  @Override
  public Set<Integer> jobs() {
    return jobs;
  }

  /** All stages that Spark has listed or submitted. */
  @Override
  public Set<Integer> stageIds() {
    return parentsOf.keySet();
  }

  List<StageRow> rows() {
    return rows;
  }

  @Override
  public void failed() {
    hasFailed = true;
  }

  private StageRow add(StageRow row) {
    rows.add(row);
    isReshaped = true;
    return row;
  }

  private void remove(StageRow row) {
    rows.remove(row);
    rowOf.remove(row.stageId);
    for (StageRow other : rows) {
      other.parents.remove(row);
    }
    isReshaped = true;
  }

  /** A Spark job lists a stage. Spark may skip the stage later. */
  @Override
  public void listed(int stageId, int tasks, List<Integer> parents) {
    if (parentsOf.putIfAbsent(stageId, parents) == null && !hasProfile) {
      addListed(stageId, tasks);
    }
  }

  private StageRow addListed(int stageId, int tasks) {
    StageRow row = add(new StageRow(stageId, Math.max(1, tasks), otherTaskMs));
    for (int parent : parentsOf.get(stageId)) {
      if (rowOf.containsKey(parent)) {
        row.parents.add(rowOf.get(parent));
      }
    }
    rowOf.put(stageId, row);
    return row;
  }

  /** A stage is submitted for the first time or again. */
  @Override
  public void submitted(int stageId, int attempt, int tasks) {
    listed(stageId, tasks, List.of());
    StageRow row = rowOf.get(stageId);
    if (row == null) {
      row = matchRow(stageId, tasks);
    }
    if (!row.isSubmitted) {
      // At another scale a stage has other tasks, and its work is what was scaled.
      row.taskMs *= isScaled ? row.tasks / (double) Math.max(1, tasks) : 1;
      row.tasks = Math.max(1, tasks);
      skipAbove(stageId);
    } else if (attempt > row.attempt) {
      row.tasks = Math.max(1, row.finished + tasks);
      row.started = row.finished;
    } else {
      return;
    }
    row.isSubmitted = true;
    row.isOpen = true;
    row.attempt = attempt;
    isReshaped = true;
  }

  /** The row for a stage that has none: that of the expected stage with the most similar size. */
  private StageRow matchRow(int stageId, int tasks) {
    StageRow best = null;
    for (int pass = 0; pass < 2 && best == null; pass++) { // first rows whose parents have stages
      for (StageRow row : rows) {
        boolean isFree = row.stageId == StageRow.EXPECTED;
        boolean isNext = pass == 1
            || row.parents.stream().allMatch(parent -> parent.stageId != StageRow.EXPECTED);
        if (isFree
            && isNext
            && (best == null || sizeDifference(row, tasks) < sizeDifference(best, tasks))) {
          best = row;
        }
      }
    }
    if (best == null) {
      return addListed(stageId, tasks);
    }
    best.stageId = stageId;
    rowOf.put(stageId, best);
    return best;
  }

  /** How much the number of tasks differs, as the absolute logarithm of the ratio. */
  private static double sizeDifference(StageRow row, int tasks) {
    return Math.abs(Math.log((double) row.tasks / Math.max(1, tasks)));
  }

  /**
   * Removes the ancestors of a running stage that have not run. Their output exists already, so
   * Spark skips them.
   */
  private void skipAbove(int stageId) {
    List<Integer> above = new ArrayList<>(parentsOf.get(stageId));
    while (!above.isEmpty()) {
      int id = above.remove(above.size() - 1);
      StageRow row = rowOf.get(id);
      if (row != null && !row.isSubmitted) {
        remove(row);
        above.addAll(parentsOf.get(id));
      }
    }
  }

  /** The row of a stage if the given attempt is the running one, else null. */
  private StageRow open(int stageId, int attempt) {
    StageRow row = rowOf.get(stageId);
    return row != null && row.isOpen && row.attempt == attempt ? row : null;
  }

  @Override
  public void taskStarted(int stageId, int attempt) {
    StageRow row = open(stageId, attempt);
    // Speculative copies of tasks do not count.
    if (row != null && row.started < row.tasks) {
      row.started++;
    }
  }

  @Override
  public void taskSucceeded(int stageId, int attempt, double tookMs) {
    StageRow row = open(stageId, attempt);
    if (row != null && row.finished < row.tasks) {
      row.finished++;
      row.started = Math.max(row.started, row.finished);
      row.executedMs += tookMs;
    }
  }

  @Override
  public void taskFailed(int stageId, int attempt) {
    StageRow row = open(stageId, attempt);
    if (row != null && row.started > row.finished) {
      row.started--;
    }
  }

  @Override
  public void taskLost(int stageId, int attempt) {
    StageRow row = open(stageId, attempt);
    if (row != null && row.finished > 0) {
      row.executedMs -= row.executedMs / row.finished;
      row.finished--;
      row.started--;
    }
  }

  /** A stage is complete or no longer needed. */
  @Override
  public void closed(int stageId) {
    StageRow row = rowOf.get(stageId);
    if (row == null) {
      return;
    }
    if (row.finished == 0) {
      remove(row);
      return;
    }
    isReshaped |= row.tasks != row.finished;
    row.tasks = row.finished;
    row.started = row.finished;
    row.isOpen = false;
  }

  /** The query has ended: removes the stages that have not run. */
  void ended() {
    for (StageRow row : new ArrayList<>(rows)) {
      if (row.finished == 0) {
        remove(row);
      } else {
        closed(row.stageId);
      }
    }
    isComplete = true;
  }

  /** Computes the fields that are derived from the stages, their tasks and their parents. */
  void reshape() {
    if (!isReshaped) {
      return;
    }
    isReshaped = false;
    for (StageRow row : rows) {
      row.children.clear();
      row.pathMs = 0;
      row.downstreamMs = 0;
      row.numWaiting = 0;
    }
    numLeft = 0;
    for (StageRow row : rows) {
      for (StageRow parent : row.parents) {
        parent.children.add(row);
        row.numWaiting += parent.isEnded ? 0 : 1;
      }
      numLeft += row.isEnded ? 0 : 1;
    }
    // Rows are in no particular order, so the pass repeats until nothing changes.
    boolean hasChanged = true;
    while (hasChanged) {
      hasChanged = false;
      for (int i = rows.size() - 1; i >= 0; i--) {
        hasChanged |= measureBelow(rows.get(i));
      }
    }
  }

  /** Updates the critical path and downstream work of a stage; returns whether they changed. */
  private static boolean measureBelow(StageRow row) {
    double longestMs = 0;
    double heaviestMs = 0;
    for (StageRow child : row.children) {
      longestMs = Math.max(longestMs, child.pathMs);
      heaviestMs = Math.max(heaviestMs, child.downstreamMs);
    }
    double newPathMs = longestMs + (1 + row.tail()) * row.taskMs;
    double newDownstreamMs = heaviestMs + row.tasks * row.taskMs;
    boolean hasChanged = newPathMs != row.pathMs || newDownstreamMs != row.downstreamMs;
    row.pathMs = newPathMs;
    row.downstreamMs = newDownstreamMs;
    return hasChanged;
  }

  /** The profile of this run, as the estimate of the next one; null if this run failed. */
  Profile run() {
    if (hasFailed) {
      return null;
    }
    List<Profile.Stage> stages = new ArrayList<>();
    Map<StageRow, Integer> places = new IdentityHashMap<>();
    for (StageRow row : rows.subList(0, Math.min(rows.size(), MAX_REMEMBERED))) {
      if (row.finished > 0) {
        List<Integer> parents = new ArrayList<>();
        row.parents.stream().filter(places::containsKey).map(places::get).forEach(parents::add);
        places.put(row, stages.size());
        stages.add(new Profile.Stage(row.tasks, row.executedMs / row.finished, parents));
      }
    }
    return stages.isEmpty() ? null : new Profile(stages);
  }
}
