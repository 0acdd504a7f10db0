package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A query as far as it is known: its stages, those that are foretold and those that were seen.
 *
 * <p>A stage that runs takes the place of the foretold one that is most like it; stages that
 * nothing foretold come behind. What did not run and will not is taken out. One thread at a time.
 */
final class Query implements Following.Followed {
  private static final int MAX_REMEMBERED = 1_000;

  private final List<String> names;
  private final boolean isForetold;
  private final double otherTaskMs;
  private final List<StageRow> rows = new ArrayList<>();
  private final Map<Integer, StageRow> rowOf = new HashMap<>();
  private final Map<Integer, List<Integer>> parentsOf = new HashMap<>(); // as Spark lists them
  private final Set<Integer> jobs = new HashSet<>();
  private Trace.Label label;
  private boolean hasFailed;
  private boolean isReshaped;

  final long arrivalMs;
  boolean isComplete;

  // How far the query is in the virtual run of fair sharing; see `FairRun`.
  boolean hasJoined;
  boolean isExact;
  boolean hasEnded;
  int numLeft;
  double totalMs;
  double leftMs;
  double pathMs;
  double wanted;
  double rate;
  double endMs;

  // What the guard found.
  double aloneMs;
  double deadlineMs;
  int urgency;

  // The order that is being made.
  double tier;
  int limit;

  /**
   * A query of which nothing has run.
   *
   * @param names under which its run is learned
   * @param profile what is foretold of it, or null
   * @param guessMs what a task takes where nothing is foretold
   */
  Query(List<String> names, Profile profile, double guessMs, long arrivalMs) {
    this.names = names;
    this.arrivalMs = arrivalMs;
    isForetold = profile != null;
    otherTaskMs = isForetold ? profile.taskMs : guessMs;
    if (isForetold) {
      for (Profile.Stage stage : profile.stages) {
        add(new StageRow(StageRow.FORETOLD, stage.tasks, stage.taskMs));
      }
      for (int i = 0; i < profile.stages.size(); i++) {
        for (int parent : profile.stages.get(i).parents) {
          rows.get(i).parents.add(rows.get(parent));
        }
      }
    }
  }

  /** Says what the query is called, and where its profile comes from. */
  Query labelled(Trace.Label newLabel) {
    label = newLabel;
    return this;
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

  /** All stages that Spark told of. */
  @Override
  public Set<Integer> stageIds() {
    return parentsOf.keySet();
  }

  List<StageRow> rows() {
    return rows;
  }

  @Override
  public void jobFailed() {
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

  /** A Spark job lists a stage; it may turn out that it need not run. */
  @Override
  public void listed(int stageId, int tasks, List<Integer> parents) {
    if (parentsOf.putIfAbsent(stageId, parents) == null && !isForetold) {
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

  /** A stage runs, or runs again. */
  @Override
  public void submitted(int stageId, int attempt, int tasks) {
    listed(stageId, tasks, List.of());
    StageRow row = rowOf.get(stageId);
    if (row == null) {
      row = seat(stageId, tasks);
    }
    if (!row.isSubmitted) {
      row.tasks = Math.max(1, tasks);
      skipAbove(stageId);
    } else if (attempt > row.attempt) {
      row.tasks = row.finished + tasks;
      row.started = row.finished;
    } else {
      return;
    }
    row.isSubmitted = true;
    row.isOpen = true;
    row.attempt = attempt;
    isReshaped = true;
  }

  /** The row of a stage that was not listed as one: the foretold one that is most like it. */
  private StageRow seat(int stageId, int tasks) {
    StageRow best = null;
    for (int pass = 0; pass < 2 && best == null; pass++) { // first those whose parents were seen
      for (StageRow row : rows) {
        boolean isFree = row.stageId == StageRow.FORETOLD;
        boolean isNext = pass == 1
            || row.parents.stream().allMatch(parent -> parent.stageId != StageRow.FORETOLD);
        if (isFree && isNext && (best == null || unlike(row, tasks) < unlike(best, tasks))) {
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

  private static double unlike(StageRow row, int tasks) {
    return Math.abs(Math.log((double) row.tasks / Math.max(1, tasks)));
  }

  /** Stages above one that runs have their output, or ran: those that did not run will not. */
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

  /** The row of a stage's attempt that runs; null for none. */
  private StageRow open(int stageId, int attempt) {
    StageRow row = rowOf.get(stageId);
    return row != null && row.isOpen && row.attempt == attempt ? row : null;
  }

  @Override
  public void taskStarted(int stageId, int attempt) {
    StageRow row = open(stageId, attempt);
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

  /** A stage is complete, or is not needed any more. */
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

  /** The query has ended: what has not run will not. */
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

  /** Brings up to date what follows from the stages, their tasks and which waits for which. */
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
    boolean hasChanged = true; // stages may be numbered in any order
    while (hasChanged) {
      hasChanged = false;
      for (int i = rows.size() - 1; i >= 0; i--) {
        hasChanged |= measureBelow(rows.get(i));
      }
    }
  }

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

  /** What is to be foretold of the next run; null if this one did not end well. */
  Profile run() {
    if (hasFailed) {
      return null;
    }
    List<Profile.Stage> found = new ArrayList<>();
    Map<StageRow, Integer> places = new IdentityHashMap<>();
    for (StageRow row : rows.subList(0, Math.min(rows.size(), MAX_REMEMBERED))) {
      if (row.finished > 0) {
        List<Integer> parents = new ArrayList<>();
        row.parents.stream().filter(places::containsKey).map(places::get).forEach(parents::add);
        places.put(row, found.size());
        found.add(new Profile.Stage(row.tasks, row.executedMs / row.finished, parents));
      }
    }
    return found.isEmpty() ? null : new Profile(found);
  }
}
