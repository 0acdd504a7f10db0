package parcae.spark.guest;

import java.util.ArrayList;
import java.util.List;

/**
 * A virtual run of fair sharing beside the real one: `parcae.cluster.kernels.virtual` in Java.
 *
 * <p>Queries share the cores equally as far as their stages have tasks for them. The run knows
 * what a scheduler may know, and is carried on when an order is made.
 */
final class FairRun {
  private static final double EPSILON_MS = 1e-6;

  private final List<Query> members = new ArrayList<>();
  private final List<Query> byLeft = new ArrayList<>();
  private double clockMs;
  private double cores;

  /** Empties a list into the run, and carries it on to the present. */
  void carryOn(Iterable<Query> open, List<Query> arrivals, long nowMs, int numCores) {
    cores = numCores;
    learn(open);
    for (Query query : arrivals) {
      query.reshape();
      flow(query.arrivalMs);
      join(query);
    }
    arrivals.clear();
    flow(nowMs);
    settle();
  }

  private void learn(Iterable<Query> open) {
    for (Query query : open) {
      query.reshape();
      if (!query.hasJoined) {
        continue;
      }
      double thoughtMs = query.totalMs;
      learnNeeds(query);
      if (query.hasEnded && thoughtMs > 0) {
        query.endMs =
            query.arrivalMs + (query.endMs - query.arrivalMs) * (query.totalMs / thoughtMs);
      } else if (query.hasEnded && query.totalMs > 0) { // nothing was known of it so far
        query.hasEnded = false;
        members.add(query);
      }
    }
    for (Query query : members) {
      query.reshape();
      if (query.isComplete && !query.isExact) {
        learnNeeds(query);
      }
    }
  }

  private void join(Query query) {
    query.hasJoined = true;
    query.hasEnded = false;
    members.add(query);
    learnNeeds(query);
  }

  /** What the query's stages need, by what is known now. */
  private static void learnNeeds(Query query) {
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

  /** Ends stages and queries that have all they need; members that are left say what they want. */
  private void settle() {
    int kept = 0;
    for (Query query : members) {
      int before;
      do { // what ended made others runnable
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

  private static double want(Query query) {
    double wanted = 0;
    for (StageRow row : query.rows()) {
      if (row.isEnded || row.numWaiting > 0) {
        continue;
      }
      if (row.needMs - row.attainedMs <= EPSILON_MS) {
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

  /** Work of the stage's slowest task after the others have ended. */
  private static double slowestMs(StageRow row) {
    return row.tail() * (row.needMs / (row.tasks + row.tail()));
  }

  private static boolean isInTail(StageRow row) {
    return row.needMs - row.attainedMs <= slowestMs(row) + EPSILON_MS;
  }

  /** Cores that the stage can use: one a task, and those that it has until its tasks end. */
  private static double width(StageRow row) {
    if (isInTail(row)) {
      return 1;
    }
    double taskMs = row.needMs / (row.tasks + row.tail());
    double needed = Math.ceil(untilChangeMs(row) / taskMs - 1e-9);
    return Math.min(row.tasks, Math.max(row.rate, needed));
  }

  /** Work of the stage until it can use another number of cores. */
  private static double untilChangeMs(StageRow row) {
    double leftMs = row.needMs - row.attainedMs;
    return isInTail(row) ? leftMs : leftMs - slowestMs(row);
  }

  /** Equal shares of the cores, as far as queries can use them; the rest is for the others. */
  private void shareOut() {
    double coresLeft = cores;
    int numLeft = members.size();
    for (Query query : members) {
      query.rate = -1;
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
      if (query.rate < 0) { // where there are fewer cores than queries, older ones have them
        query.rate = Math.min(Math.max(1, coresLeft / numLeft), coresLeft);
        coresLeft -= query.rate;
        numLeft--;
      }
    }
  }

  /** Gives the query's cores to its stages; returns the time to the first end of one of them. */
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

  /** Writes when every member would end if no query arrived any more. */
  void foretellEnds() {
    byLeft.clear();
    byLeft.addAll(members);
    for (Query query : members) {
      measureLeft(query);
    }
    byLeft.sort((first, second) -> Double.compare(first.leftMs, second.leftMs));
    double passedMs = 0;
    double sharedMs = 0;
    for (int place = 0; place < byLeft.size(); place++) {
      Query query = byLeft.get(place);
      sharedMs += (query.leftMs - passedMs) * (byLeft.size() - place) / cores;
      passedMs = query.leftMs;
      query.endMs = clockMs + Math.max(sharedMs, query.pathMs);
    }
  }

  private static void measureLeft(Query query) {
    double leftMs = 0;
    double pathMs = 0;
    for (StageRow row : query.rows()) {
      if (row.isEnded) {
        continue;
      }
      leftMs += Math.max(0, row.needMs - row.attainedMs);
      double foretoldMs = (row.tasks + row.tail()) * row.taskMs;
      double doneMs = row.attainedMs / row.needMs * (1 + row.tail()) * row.taskMs;
      pathMs = Math.max(pathMs, (row.pathMs - doneMs) * (row.needMs / Math.max(1, foretoldMs)));
    }
    query.leftMs = leftMs;
    query.pathMs = pathMs;
  }
}
