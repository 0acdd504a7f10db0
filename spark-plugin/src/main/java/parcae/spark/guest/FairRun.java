package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/**
 * The virtual run: a simulated run of fair sharing beside the real one. It is
 * `parcae.cluster.kernels.virtual` in Java.
 *
 * <p>Queries share the cores equally, as far as their stages have tasks for them. The virtual run
 * uses only what a scheduler may know. It advances each time that an order is computed.
 */
final class FairRun {
  /** Tolerance of rounding; also the shortest step, so that a run always advances. */
  private static final double EPSILON_MS = 1e-6;
  /** The same as a share of a stage's work: sums of large numbers are rounded more coarsely. */
  private static final double EPSILON_SHARE = 1e-12;
  /** With more members that have ended in the real run, the oldest of them leave. */
  private static final int MAX_COMPLETE = 1_000;

  private final List<Query> members = new ArrayList<>(); // arrived and not ended in this run
  private final List<Query> byRemaining = new ArrayList<>(); // members by remaining work
  private double clockMs;
  private double cores;

  /**
   * Advances the run to the present.
   *
   * @param open the queries that are open in the real run
   * @param arrivals the queries that arrived since the last call, in order; the list is emptied
   * @param nowMs the present, in ms
   * @param numCores the cores of the application
   */
  void advance(Iterable<Query> open, List<Query> arrivals, long nowMs, int numCores) {
    cores = numCores;
    updateAll(open);
    for (Query query : arrivals) {
      query.reshape();
      flow(query.arrivalMs);
      join(query);
    }
    arrivals.clear();
    dropOldest();
    flow(nowMs);
    settle();
  }

  /**
   * Keeps the number of members bounded. This run needs more work than the real one for the slowest
   * tasks of stages, so that on a busy cluster it falls behind for ever.
   */
  private void dropOldest() {
    long surplus = members.stream().filter(query -> query.isComplete).count() - MAX_COMPLETE;
    for (Iterator<Query> all = members.iterator(); surplus > 0; ) {
      if (all.next().isComplete) {
        all.remove();
        surplus--;
      }
    }
  }

  /** Updates the work of all queries by what is known now. */
  private void updateAll(Iterable<Query> open) {
    for (Query query : open) {
      query.reshape();
      if (!query.hasJoined) {
        continue;
      }
      double previousTotalMs = query.totalMs;
      updateNeeds(query);
      if (query.hasEnded && previousTotalMs > 0) {
        // The query ended here already. Its time in the run changes in proportion to its work.
        query.endMs =
            query.arrivalMs + (query.endMs - query.arrivalMs) * (query.totalMs / previousTotalMs);
      } else if (query.hasEnded && query.totalMs > 0) { // it had no known work
        query.hasEnded = false;
        members.add(query);
      }
    }
    for (Query query : members) {
      query.reshape();
      if (query.isComplete && !query.isExact) {
        updateNeeds(query);
      }
    }
  }

  private void join(Query query) {
    query.hasJoined = true;
    query.hasEnded = false;
    members.add(query);
    updateNeeds(query);
  }

  /** Computes the work that the query's stages need, by what is known now. */
  private static void updateNeeds(Query query) {
    double factor = Estimates.correction(query);
    double totalMs = 0;
    for (StageRow row : query.rows()) {
      int left = row.tasks - row.finished;
      double workMs = Math.max(1, row.executedMs + left * row.taskMs * factor);
      row.needMs = workMs * (1 + row.tail() / row.tasks);
      totalMs += row.needMs;
    }
    query.totalMs = totalMs;
    query.isExact = query.isComplete;
  }

  /** Runs the members from the clock to a given time. */
  private void flow(double untilMs) {
    while (clockMs < untilMs && !members.isEmpty()) {
      settle();
      shareOut();
      double stepMs = untilMs - clockMs;
      for (Query query : members) {
        stepMs = Math.min(stepMs, spread(query));
      }
      for (Query query : members) {
        for (StageRow row : query.rows()) {
          row.attainedMs += row.rate * stepMs;
        }
      }
      clockMs += Math.max(stepMs, EPSILON_MS);
    }
    clockMs = Math.max(clockMs, untilMs);
  }

  /** Ends the stages and queries whose work is done; sets the cores that other members want. */
  private void settle() {
    int kept = 0;
    for (Query query : members) {
      int before;
      do { // a stage that ends can make its children runnable
        before = query.numLeft;
        query.wanted = want(query);
      } while (query.wanted == 0 && query.numLeft > 0 && query.numLeft < before);
      if (query.numLeft == 0) {
        query.hasEnded = true;
        query.endMs = clockMs;
      } else {
        members.set(kept++, query);
      }
    }
    members.subList(kept, members.size()).clear();
  }

  /** Ends the query's stages that are done; returns how many cores the others can use. */
  private static double want(Query query) {
    double wanted = 0;
    for (StageRow row : query.rows()) {
      if (row.isEnded || row.numWaiting > 0) {
        continue;
      }
      if (row.needMs - row.attainedMs <= roundingMs(row)) {
        row.isEnded = true;
        query.numLeft--;
        for (StageRow child : row.children) {
          child.numWaiting--;
        }
      } else {
        wanted += width(row);
      }
    }
    return wanted;
  }

  /** The work of the stage's slowest task that is left when all other tasks have ended. */
  private static double slowestMs(StageRow row) {
    return row.tail() * (row.needMs / (row.tasks + row.tail()));
  }

  /** Which rest of the stage's work counts as none. */
  private static double roundingMs(StageRow row) {
    return EPSILON_MS + EPSILON_SHARE * row.needMs;
  }

  private static boolean isInTail(StageRow row) {
    return row.needMs - row.attainedMs <= slowestMs(row) + roundingMs(row);
  }

  /**
   * Cores that the stage can use: one per task, but no more than its remaining tasks need. A stage
   * keeps the cores that it has until its tasks end.
   */
  private static double width(StageRow row) {
    if (isInTail(row)) {
      return 1;
    }
    double taskMs = row.needMs / (row.tasks + row.tail());
    double needed = Math.ceil(untilChangeMs(row) / taskMs - 1e-9);
    return Math.min(row.tasks, Math.max(row.rate, needed));
  }

  /** The work that the stage does until the number of cores that it can use changes. */
  private static double untilChangeMs(StageRow row) {
    double leftMs = row.needMs - row.attainedMs;
    return isInTail(row) ? leftMs : leftMs - slowestMs(row);
  }

  /** Gives every query an equal share; cores that a query cannot use are shared by the others. */
  private void shareOut() {
    double coresLeft = cores;
    int numLeft = members.size();
    for (Query query : members) {
      query.rate = -1; // not decided yet
    }
    boolean isSettled = false;
    while (!isSettled && numLeft > 0) {
      isSettled = true;
      double level = coresLeft / numLeft;
      for (Query query : members) {
        if (query.rate < 0 && query.wanted <= level) {
          query.rate = query.wanted;
          coresLeft -= query.wanted;
          numLeft--;
          isSettled = false;
        }
      }
    }
    for (Query query : members) {
      if (query.rate < 0) { // with fewer cores than queries, the older queries get a core each
        query.rate = Math.min(Math.max(1, coresLeft / numLeft), coresLeft);
        coresLeft -= query.rate;
        numLeft--;
      }
    }
  }

  /** Gives the query's cores to its stages; returns the time until the first of them changes. */
  private static double spread(Query query) {
    double rate = query.rate;
    double soonestMs = Double.POSITIVE_INFINITY;
    for (StageRow row : query.rows()) {
      if (row.isEnded || row.numWaiting > 0 || rate <= 0) {
        row.rate = 0;
        continue;
      }
      double untilMs = untilChangeMs(row);
      row.rate = Math.min(rate, width(row));
      rate -= row.rate;
      soonestMs = Math.min(soonestMs, untilMs / row.rate);
    }
    return soonestMs;
  }

  /** Sets the time at which every member would end if no other query arrived. */
  void estimateEnds() {
    byRemaining.clear();
    byRemaining.addAll(members);
    for (Query query : members) {
      measureRemaining(query);
    }
    byRemaining.sort((first, second) -> Double.compare(first.leftMs, second.leftMs));
    double passedMs = 0;
    double sharedMs = 0;
    for (int place = 0; place < byRemaining.size(); place++) {
      Query query = byRemaining.get(place);
      sharedMs += (query.leftMs - passedMs) * (byRemaining.size() - place) / cores;
      passedMs = query.leftMs;
      query.endMs = clockMs + Math.max(sharedMs, query.pathMs);
    }
  }

  /** Sets the query's remaining work and its remaining critical path in the virtual run. */
  private static void measureRemaining(Query query) {
    double leftMs = 0;
    double pathMs = 0;
    for (StageRow row : query.rows()) {
      if (row.isEnded) {
        continue;
      }
      leftMs += Math.max(0, row.needMs - row.attainedMs);
      double estimatedMs = (row.tasks + row.tail()) * row.taskMs;
      double doneMs = row.attainedMs / row.needMs * (1 + row.tail()) * row.taskMs;
      pathMs = Math.max(pathMs, (row.pathMs - doneMs) * (row.needMs / Math.max(1, estimatedMs)));
    }
    query.leftMs = leftMs;
    query.pathMs = pathMs;
  }
}
