package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/**
 * The guard: gives every query a deadline, a multiple of its time under fair sharing. It is
 * `parcae.cluster.kernels.guard` in Java.
 *
 * <p>Queries that are about to miss their deadline, and those with earlier deadlines, are served
 * before all others. Among themselves they keep the policy's order.
 */
final class Guard {
  /** The rate at which work arrives is estimated from so many of the latest queries. */
  static final int LATEST = 128;
  /** The weight of smaller queries that will arrive. */
  private static final double ARRIVALS_COUNT = 0.6;
  /** A query is urgent when its slack is below this share of its allowed delay. */
  private static final double MARGIN = 0.75;
  /** The shortest time to the next check, as a share of the margin. */
  private static final double LEAST_WAIT = 0.1;
  /** Tiers are cut to this range, so that adding a span to them stays exact enough. */
  private static final double LARGEST_TIER = 1e12;

  private final double allowed; // delay, as a multiple of the time under fair sharing
  private final List<Query> byDeadline = new ArrayList<>();
  private double cores;
  private long nowMs;
  private double waitMs; // until the guard must check again

  /** Allows every query so many times its time under fair sharing; the factor is above 1. */
  Guard(double factor) {
    allowed = factor - 1;
  }

  /**
   * Changes the tiers and limits of urgent queries.
   *
   * @param open the open queries, after the policy has set their tiers
   * @param latest the queries that arrived last, at most `LATEST` + 1, including ended ones
   * @param clockMs the present, in ms
   * @param numCores the cores of the application
   * @param wakeMs when the policy wants to plan again, or Order.NOT_YET
   * @return when to plan again at the latest, or Order.NOT_YET
   */
  long apply(
      Collection<Query> open, List<Query> latest, long clockMs, int numCores, long wakeMs) {
    cores = numCores;
    nowMs = clockMs;
    byDeadline.clear();
    for (Query query : open) {
      setDeadline(query);
      byDeadline.add(query);
    }
    byDeadline.sort((first, second) -> Double.compare(first.deadlineMs, second.deadlineMs));
    int numUrgencies = findUrgent(latest);
    if (numUrgencies > 0) {
      double span = spanOfTiers(open);
      for (Query query : open) {
        if (query.urgency > 0) {
          double tier = Math.min(Math.max(query.tier, -LARGEST_TIER), LARGEST_TIER);
          query.tier = tier - (1 + numUrgencies - query.urgency) * span;
        }
      }
    }
    if (waitMs >= LARGEST_TIER) {
      return wakeMs;
    }
    long checkMs = nowMs + (long) waitMs + 1;
    return wakeMs == Order.NOT_YET ? checkMs : Math.min(wakeMs, checkMs);
  }

  /** Sets the query's deadline, remaining work and shortest time to its end. */
  private void setDeadline(Query query) {
    double factor = Estimates.correction(query);
    double workMs = 0;
    double pathMs = 0;
    for (StageRow row : query.rows()) {
      int unstarted = row.tasks - row.started;
      if (row.running() + unstarted > 0) {
        double taskMs = row.taskMs * factor;
        double doneMs = unstarted == 0 ? 0.5 * taskMs : 0; // a running task counts as half done
        workMs += (unstarted + 0.5 * row.running()) * taskMs;
        pathMs = Math.max(pathMs, row.pathMs * factor - doneMs);
      }
    }
    double fairMs = Math.max(1, query.endMs - query.arrivalMs);
    query.leftMs = workMs;
    query.aloneMs = Math.max(workMs / cores, pathMs);
    // A deadline that cannot be met any more is moved on by whole multiples of the allowed delay.
    double leastDelay = (nowMs + query.aloneMs - query.arrivalMs) / fairMs - 1;
    double delay = allowed * Math.max(1, Math.ceil(leastDelay / allowed));
    query.deadlineMs = query.arrivalMs + fairMs * (1 + delay);
    query.urgency = 0;
  }

  /**
   * Numbers groups of urgent queries: a query that is about to miss its deadline and the queries
   * with earlier deadlines. Returns the number of groups.
   */
  private int findUrgent(List<Query> latest) {
    int numUrgent = 0;
    int urgency = 0;
    double aheadMs = 0;
    waitMs = Double.POSITIVE_INFINITY;
    for (int place = 0; place < byDeadline.size(); place++) {
      Query query = byDeadline.get(place);
      double freeShare = 1 - ARRIVALS_COUNT * arrivingShare(query, latest);
      double neededMs = (aheadMs / cores + query.aloneMs) / freeShare;
      aheadMs += query.leftMs;
      double allowedMs = allowed * (query.endMs - query.arrivalMs);
      double marginMs = MARGIN * Math.max(0, allowedMs);
      double slackMs = query.deadlineMs - nowMs - neededMs - marginMs;
      if (slackMs <= 0) {
        urgency++;
        for (Query earlier : byDeadline.subList(numUrgent, place + 1)) {
          earlier.urgency = urgency;
        }
        numUrgent = place + 1;
        query.limit = Order.UNLIMITED;
      } else {
        waitMs = Math.min(waitMs, Math.max(slackMs, LEAST_WAIT * marginMs));
      }
    }
    return urgency;
  }

  /** Share of the cores that smaller queries, which go first, will take as they arrive. */
  private double arrivingShare(Query query, List<Query> latest) {
    long fromMs = latest.get(0).arrivalMs;
    double elapsedMs = nowMs - fromMs;
    if (elapsedMs <= 0) {
      return 0;
    }
    double workMs = 0;
    for (Query other : latest.subList(1, latest.size())) {
      if (other.arrivalMs > fromMs && other.totalMs < query.totalMs) {
        workMs += other.totalMs;
      }
    }
    return Math.min(0.9, workMs / (elapsedMs * cores));
  }

  /** A number above the difference between the tiers of any two queries. */
  private static double spanOfTiers(Iterable<Query> open) {
    double least = 0;
    double most = 0;
    for (Query query : open) {
      if (!query.rows().isEmpty() && Math.abs(query.tier) < LARGEST_TIER) {
        least = Math.min(least, query.tier);
        most = Math.max(most, query.tier);
      }
    }
    return most - least + 1;
  }
}
