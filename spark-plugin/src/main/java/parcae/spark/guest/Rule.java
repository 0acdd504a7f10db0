package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;

/**
 * The rule of the cores world: `parcae.policies.rule.kernels` in Java.
 *
 * <p>A query's tier is the logarithm of its remaining work plus a weighted sum of features. The sum
 * is scaled by the recent error of the estimates. The rule may start a few tasks (probes) of a
 * query before all others, to measure its size.
 */
final class Rule {
  /** The parameters by name, as in `parcae.policies.rule.kernels`. */
  enum Parameter {
    NARROW, TOTAL, CORRECTION, SURPRISE, STARTED, AGE, STAGES, WIDTH, UNTRIED, FEW, RUNNING,
    VIRTUAL, CROWDED, STAGE_PATH, STAGE_TASK, STAGE_TASKS, STAGE_WORK, PROBE, PROBE_ERRING,
    PROBE_SHARE, PRIOR_ERROR
  }

  /** What a query's tier is computed from, as in `parcae.policies.network.kernels`. */
  enum Feature {
    LEFT, TOTAL, NARROW, CORRECTION, SURPRISE, STARTED, STAGES, AGE, WIDTH, UNTRIED, FEW, RUNNING,
    VIRTUAL,
    // Only the network uses these:
    RANK, AHEAD, ABOVE, IS_TRIED, ERRING, JOBS, DEMAND
  }


  /** The error of the estimates is measured on so many of the latest queries. */
  static final int LATEST = 64;
  /** Tier of queries with probes to start; as work it is none. */
  private static final double PROBE_TIER = -1e6;
  /** The prior of the estimates' error: a variance that counts as so many queries. */
  private static final double PRIOR_JOBS = 2;
  private static final double PRIOR_VARIANCE = 0.02;

  /** Upper bound of the feature ABOVE. */
  private static final double MOST_ABOVE = 5;

  private final double[] theta; // parameters by ordinal
  private final double[] slopes = new double[Feature.values().length]; // of features, by ordinal
  private final Network network; // null: the rule alone
  private final double meanMs; // mean work of a query
  private double cores;
  private long nowMs;
  private double estimateError; // standard deviation of log(actual / estimated duration)
  private double logJobs; // log of the number of open queries
  private long wakeMs;

  /**
   * Creates the rule.
   *
   * @param theta a value for every parameter, by its ordinal
   * @param meanWorkMs mean work of a query, in ms of one core
   * @param network moves the rule's tiers; null if there is none
   */
  Rule(double[] theta, double meanWorkMs, Network network) {
    this.theta = theta.clone();
    this.network = network;
    meanMs = Math.max(1, meanWorkMs);
    for (Feature feature : EnumSet.range(Feature.TOTAL, Feature.VIRTUAL)) {
      slopes[feature.ordinal()] = of(Parameter.valueOf(feature.name()));
    }
  }

  /** The facts about one query from which its features are computed. */
  static final class Facts {
    final Query query;
    final double[] features = new double[Feature.values().length]; // by ordinal
    double[] hidden; // of the network
    boolean isTried; // it has probes to start
    double leftMs; // work of the tasks that have not started and half of that of running tasks
    double totalMs;
    double pathMs; // critical path
    double factor; // correction of the estimates, see Estimates.correction
    double surprise; // log(actual / estimated duration) of its finished tasks
    int finished;
    int started;
    int tasks;
    int pending; // tasks that could start now
    int running;
    int stagesLeft;

    Facts(Query query) {
      this.query = query;
    }

    double of(Feature feature) {
      return features[feature.ordinal()];
    }

    void set(Feature feature, double value) {
      features[feature.ordinal()] = value;
    }
  }

  /** A rule for nothing but `orderStages`: by critical path, the longest first. */
  static Rule ofPaths() {
    double[] theta = new double[Parameter.values().length];
    theta[Parameter.STAGE_PATH.ordinal()] = 1;
    return new Rule(theta, 1, null);
  }

  private double of(Parameter parameter) {
    return theta[parameter.ordinal()];
  }

  /** Tier of a query that the planner has not seen yet: that of a query with the mean work. */
  double otherTier() {
    return log(meanMs);
  }

  /** The logarithm of an amount of work, in units of the mean work of a query. */
  private double log(double amountMs) {
    return Math.log(Math.max(amountMs, 1) / meanMs + 1e-4);
  }

  /** The remaining work that a tier means, in ms of a core. */
  double workMs(double tier) {
    return Math.exp(tier) * meanMs;
  }

  /**
   * Sets the tiers and limits of the queries and the ranks of their stages.
   *
   * @param open the open queries
   * @param latest the queries that arrived last, at most `LATEST`, including ended ones
   * @param clockMs the present, in ms
   * @param numCores the cores of the application
   * @return when to plan again at the latest, or Order.NOT_YET
   */
  long plan(Collection<Query> open, Iterable<Query> latest, long clockMs, int numCores) {
    cores = numCores;
    nowMs = clockMs;
    wakeMs = Order.NOT_YET;
    estimateError = measureEstimateError(latest);
    logJobs = Math.log(Math.max(1, open.size()));
    List<Facts> all = new ArrayList<>();
    for (Query query : open) {
      Facts facts = facts(query);
      describe(facts);
      query.tier = tier(facts);
      query.limit = Order.UNLIMITED;
      applyProbes(facts);
      orderStages(query);
      all.add(facts);
    }
    if (network != null) {
      compare(all);
      network.correct(all, estimateError);
    }
    for (Facts facts : all) {
      if (facts.isTried) {
        facts.query.tier = PROBE_TIER;
      }
    }
    return wakeMs;
  }

  /** The logarithm of the actual over the estimated duration of finished tasks. */
  private static double surprise(double tookMs, double expectedMs) {
    return Math.log(Math.max(tookMs, 1) / Math.max(expectedMs, 1));
  }

  /** The recent error of the estimates: the standard deviation of `surprise` with a prior. */
  private double measureEstimateError(Iterable<Query> latest) {
    double weight = PRIOR_JOBS;
    double variance = PRIOR_VARIANCE * Math.exp(Math.min(10, of(Parameter.PRIOR_ERROR)));
    double squares = PRIOR_JOBS * variance;
    for (Query query : latest) {
      int finished = 0;
      double tookMs = 0;
      double expectedMs = 0;
      for (StageRow row : query.rows()) {
        finished += row.finished;
        tookMs += row.executedMs;
        expectedMs += row.finished * row.taskMs;
      }
      if (finished > 0) {
        double trust = finished / (finished + 10.0);
        double surprise = surprise(tookMs, expectedMs);
        squares += trust * surprise * surprise;
        weight += trust;
      }
    }
    return Math.sqrt(squares / weight);
  }

  private static Facts facts(Query query) {
    Facts facts = new Facts(query);
    double tookMs = 0;
    double expectedMs = 0;
    for (StageRow row : query.rows()) {
      facts.tasks += row.tasks;
      facts.started += row.started;
      facts.finished += row.finished;
      facts.running += row.running();
      facts.totalMs += row.tasks * row.taskMs;
      facts.leftMs += (row.tasks - row.started + 0.5 * row.running()) * row.taskMs;
      tookMs += row.executedMs;
      expectedMs += row.finished * row.taskMs;
      if (row.finished < row.tasks) {
        facts.stagesLeft++;
        facts.pathMs = Math.max(facts.pathMs, row.pathMs);
      }
      facts.pending += row.isPending() ? row.tasks - row.started : 0;
    }
    facts.factor = Estimates.correction(query);
    facts.leftMs = Math.max(facts.leftMs * facts.factor, Estimates.LEAST_SHARE * tookMs);
    facts.totalMs *= facts.factor;
    if (query.priorMs > 0) { // its stages come to light one by one
      facts.leftMs = Estimates.remainingMs(query);
      facts.totalMs = facts.leftMs + tookMs;
    }
    facts.pathMs *= facts.factor;
    facts.surprise = facts.finished > 0 ? surprise(tookMs, expectedMs) : 0;
    return facts;
  }

  /** Sets the features that depend on the query alone. */
  private void describe(Facts facts) {
    Query query = facts.query;
    double virtualLeftMs = Math.max(0, query.endMs - nowMs);
    facts.set(Feature.LEFT, log(facts.leftMs));
    facts.set(Feature.TOTAL, log(facts.totalMs));
    facts.set(Feature.NARROW, Math.log1p(facts.pathMs * cores / Math.max(facts.leftMs, 1)));
    facts.set(Feature.CORRECTION, Math.log(facts.factor));
    facts.set(Feature.SURPRISE, facts.surprise * facts.finished / (facts.finished + 10.0));
    facts.set(Feature.STARTED, (double) facts.started / Math.max(1, facts.tasks));
    facts.set(Feature.STAGES, (double) facts.stagesLeft / Math.max(1, query.rows().size()));
    facts.set(Feature.AGE, Math.log1p((nowMs - query.arrivalMs) * cores / meanMs));
    facts.set(Feature.WIDTH, Math.log1p(facts.pending / cores));
    facts.set(Feature.UNTRIED, facts.finished == 0 ? 1 : 0);
    facts.set(Feature.FEW, 1.0 / (1 + facts.finished));
    facts.set(Feature.RUNNING, facts.running / cores);
    facts.set(Feature.VIRTUAL, Math.log1p(virtualLeftMs * cores / meanMs));
  }

  private double tier(Facts facts) {
    double value = of(Parameter.CROWDED) * logJobs * facts.of(Feature.TOTAL);
    for (int i = 0; i < slopes.length; i++) {
      value += slopes[i] * facts.features[i];
    }
    return facts.of(Feature.LEFT) + estimateError * value;
  }

  /** Sets the features that compare a query with the others, and those that all queries share. */
  private void compare(List<Facts> all) {
    double demand = 0;
    for (Facts facts : all) {
      demand += facts.pending / cores;
    }
    List<Facts> byTier = sortedByTier(all);
    double aheadMs = 0;
    for (int place = 0; place < byTier.size(); place++) {
      Facts facts = byTier.get(place);
      double above = facts.query.tier - byTier.get(0).query.tier;
      facts.set(Feature.RANK, (double) place / byTier.size());
      facts.set(Feature.AHEAD, Math.log1p(aheadMs / meanMs));
      facts.set(Feature.ABOVE, Math.min(MOST_ABOVE, above));
      facts.set(Feature.IS_TRIED, facts.isTried ? 1 : 0);
      facts.set(Feature.ERRING, estimateError);
      facts.set(Feature.JOBS, logJobs);
      facts.set(Feature.DEMAND, Math.log1p(demand));
      aheadMs += facts.leftMs;
    }
  }

  /** Sorts by Shell's sort, as Python does, so that equal tiers come in the same order. */
  private static List<Facts> sortedByTier(List<Facts> all) {
    List<Facts> sorted = new ArrayList<>(all);
    int gap = 1;
    while (gap < sorted.size() / 3) {
      gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
      for (int i = gap; i < sorted.size(); i++) {
        Facts facts = sorted.get(i);
        int at = i;
        while (at >= gap && sorted.get(at - gap).query.tier > facts.query.tier) {
          sorted.set(at, sorted.get(at - gap));
          at -= gap;
        }
        sorted.set(at, facts);
      }
    }
    return sorted;
  }

  /** Has the query tried before others, limited to its probes, until these have started. */
  private void applyProbes(Facts facts) {
    double power = of(Parameter.PROBE) + of(Parameter.PROBE_ERRING) * estimateError - 1;
    double share = Math.exp(of(Parameter.PROBE_SHARE) - 3);
    double probes = Math.min(Math.floor(Math.pow(2, power)), Math.floor(facts.tasks * share));
    if (facts.started < probes) {
      facts.isTried = true;
      facts.query.limit = (int) probes;
      wakeAfterTask(facts.query);
    } else if (facts.finished < probes && facts.finished == 0) {
      wakeAfterTask(facts.query);
    }
  }

  /** Asks to plan again when the tasks that the query runs now should have ended. */
  private void wakeAfterTask(Query query) {
    double taskMs = 0;
    for (StageRow row : query.rows()) {
      if (row.running() > 0 || row.isPending()) {
        taskMs = Math.max(taskMs, row.taskMs);
      }
    }
    long timeMs = nowMs + (long) taskMs + 1;
    if (wakeMs == Order.NOT_YET || timeMs < wakeMs) {
      wakeMs = timeMs;
    }
  }

  /** Sets the ranks of the query's stages that have tasks to start. */
  void orderStages(Query query) {
    for (StageRow row : query.rows()) {
      if (row.isPending()) {
        double value = of(Parameter.STAGE_PATH) * Math.log(1 + row.pathMs);
        value += of(Parameter.STAGE_TASK) * Math.log(1 + row.taskMs);
        value += of(Parameter.STAGE_TASKS) * Math.log(1.0 + row.tasks - row.started);
        value += of(Parameter.STAGE_WORK) * Math.log(1 + row.downstreamMs);
        row.rank = -value;
      }
    }
  }
}
