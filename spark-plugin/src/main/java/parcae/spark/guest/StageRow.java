package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;

/** A stage of a query: one that is expected, listed by Spark, running or done. */
final class StageRow {
  /** The id of a stage that the profile expects and Spark has not submitted. */
  static final int EXPECTED = -1;

  int stageId;
  int attempt;
  boolean isSubmitted;
  boolean isOpen; // it was submitted and has not ended
  int tasks;
  int started; // tasks; includes the finished ones
  int finished;
  double executedMs; // of finished tasks
  double taskMs; // estimated duration of a task
  final List<StageRow> parents = new ArrayList<>();

  // Derived from the query's stages; see `Query.reshape`.
  final List<StageRow> children = new ArrayList<>();
  double pathMs; // critical path: the longest chain of tasks, one per stage, from here to a leaf
  double downstreamMs; // work on the heaviest path from here to a leaf

  // The stage in the virtual run.
  double needMs; // its work there
  double attainedMs; // the part of it that is done
  double rate; // cores that it has
  int numWaiting; // parents that have not ended
  boolean isEnded;

  double rank; // in the order that is being computed

  StageRow(int stageId, int tasks, double taskMs) {
    this.stageId = stageId;
    this.tasks = tasks;
    this.taskMs = taskMs;
  }

  int running() {
    return started - finished;
  }

  /** Whether a task of it could start now. */
  boolean isPending() {
    return isOpen && started < tasks;
  }

  /** By how many task durations the slowest task outlasts the others: near 0.5 for many tasks. */
  double tail() {
    return 0.5 - 0.5 / tasks;
  }
}
