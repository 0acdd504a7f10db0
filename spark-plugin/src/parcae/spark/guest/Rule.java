package parcae.spark.guest;

import java.util.Collection;

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

  /** The error of the estimates is measured on so many of the latest queries. */
  static final int LATEST = 64;
  /** Tier of queries with probes to start. Only urgent queries of the guard come before them. */
  private static final double PROBE_TIER = -1e6;
  /** The prior of the estimates' error: a variance that counts as so many queries. */
  private static final double PRIOR_JOBS = 2;
  private static final double PRIOR_VARIANCE = 0.02;

  private final double[] theta; // parameters by ordinal
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
   */
  Rule(double[] theta, double meanWorkMs) {
    this.theta = theta.clone();
    meanMs = Math.max(1, meanWorkMs);
  }

  /** The facts about one query from which its features are computed. */
  private static final class Facts {
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
    for (Query query : open) {
      Facts facts = facts(query);
      query.tier = tier(query, facts);
      query.limit = Order.UNLIMITED;
      applyProbes(query, facts);
      orderStages(query);
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
    Facts facts = new Facts();
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
    facts.pathMs *= facts.factor;
    facts.surprise = facts.finished > 0 ? surprise(tookMs, expectedMs) : 0;
    return facts;
  }

  private double tier(Query query, Facts facts) {
    double virtualLeftMs = Math.max(0, query.endMs - nowMs);
    double started = (double) facts.started / Math.max(1, facts.tasks);
    double stagesLeft = (double) facts.stagesLeft / Math.max(1, query.rows().size());
    double value =
        of(Parameter.NARROW) * Math.log1p(facts.pathMs * cores / Math.max(facts.leftMs, 1));
    value += (of(Parameter.TOTAL) + of(Parameter.CROWDED) * logJobs) * log(facts.totalMs);
    value += of(Parameter.CORRECTION) * Math.log(facts.factor);
    value += of(Parameter.SURPRISE) * facts.surprise * facts.finished / (facts.finished + 10.0);
    value += of(Parameter.STARTED) * started;
    value += of(Parameter.AGE) * Math.log1p((nowMs - query.arrivalMs) * cores / meanMs);
    value += of(Parameter.STAGES) * stagesLeft;
    value += of(Parameter.WIDTH) * Math.log1p(facts.pending / cores);
    value += of(Parameter.UNTRIED) * (facts.finished == 0 ? 1 : 0);
    value += of(Parameter.FEW) / (1 + facts.finished);
    value += of(Parameter.RUNNING) * facts.running / cores;
    value += of(Parameter.VIRTUAL) * Math.log1p(virtualLeftMs * cores / meanMs);
    return log(facts.leftMs) + estimateError * value;
  }

  /** Puts the query before others, limited to its probes, until these have started. */
  private void applyProbes(Query query, Facts facts) {
    double power = of(Parameter.PROBE) + of(Parameter.PROBE_ERRING) * estimateError - 1;
    double share = Math.exp(of(Parameter.PROBE_SHARE) - 3);
    double probes = Math.min(Math.floor(Math.pow(2, power)), Math.floor(facts.tasks * share));
    if (facts.started < probes) {
      query.tier = PROBE_TIER;
      query.limit = (int) probes;
      wakeAfterTask(query);
    } else if (facts.finished < probes && facts.finished == 0) {
      wakeAfterTask(query);
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
  private void orderStages(Query query) {
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
