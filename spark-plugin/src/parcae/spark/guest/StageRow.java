package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;

/** A stage of a query: one that is foretold, is listed, runs or ran. */
final class StageRow {
  /** The id of a stage that is only foretold. */
  static final int FORETOLD = -1;

  int stageId;
  int attempt;
  boolean isSubmitted;
  boolean isOpen; // it runs, and has not ended
  int tasks;
  int started; // those that finished are among them
  int finished;
  double executedMs; // of finished tasks
  double taskMs; // what a task is foretold to take
  final List<StageRow> parents = new ArrayList<>();

  // What follows from the shape of the query; see `Query.reshape`.
  final List<StageRow> children = new ArrayList<>();
  double pathMs; // the longest chain of tasks, one a stage, from here to a leaf
  double downstreamMs; // work on the heaviest path from here to a leaf

  // How far the stage is in the virtual run of fair sharing.
  double needMs;
  double attainedMs;
  double rate;
  int numWaiting;
  boolean isEnded;

  double rank; // in the order that is being made

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

  /** By how many tasks' time the slowest task outlasts the others: half a task of many. */
  double tail() {
    return 0.5 - 0.5 / tasks;
  }
}
