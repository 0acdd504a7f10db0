package parcae.spark.guest;

import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * A standing order. Immutable.
 *
 * <p>Task sets are served by (tier of the job + tier of the stage, running tasks of the job /
 * weight where the weight is above 0, arrival of the job, rank of the stage), smallest first; ties
 * are Spark's to decide. A job is a query: see `queryOf`.
 */
final class Order {
  /** A limit that never binds. */
  static final int UNLIMITED = Integer.MAX_VALUE;
  /** No time. */
  static final long NOT_YET = -1;
  /** No order: Spark's own is in force. */
  static final Order NONE = new Builder().build(Double.MAX_VALUE);

  private static final String ROOT_EXECUTION = "spark.sql.execution.root.id";
  private static final String EXECUTION = "spark.sql.execution.id";
  private static final Stage PLAIN_STAGE = new Stage(0, 0, UNLIMITED);

  private final Map<String, Job> jobs;
  private final Map<Integer, Stage> stages;
  private final Job other;
  private final long wakeMs;
  private final boolean hasLimits;

  private Order(Builder made, double otherTier) {
    jobs = new HashMap<>(made.jobs);
    stages = new HashMap<>(made.stages);
    other = new Job(otherTier, 0, UNLIMITED);
    wakeMs = made.wakeMs;
    hasLimits = made.hasLimits;
  }

  /** What an order says of a job: running tasks are at most `limit`; weight 0 is first come. */
  static final class Job {
    final double tier;
    final double weight;
    final int limit;

    private Job(double tier, double weight, int limit) {
      this.tier = tier;
      this.weight = weight;
      this.limit = limit;
    }
  }

  /** What an order says of a stage: its tier is added to its job's. */
  static final class Stage {
    final double tier;
    final double rank;
    final int limit;

    private Stage(double tier, double rank, int limit) {
      this.tier = tier;
      this.rank = rank;
      this.limit = limit;
    }
  }

  /** Gathers an order; one thread at a time. */
  static final class Builder {
    private final Map<String, Job> jobs = new HashMap<>();
    private final Map<Integer, Stage> stages = new HashMap<>();
    private long wakeMs = NOT_YET;
    private boolean hasLimits;

    Builder job(String key, double tier, double weight, int limit) {
      jobs.put(key, new Job(tier, weight, limit));
      hasLimits |= limit != UNLIMITED;
      return this;
    }

    /** Stages that are not named have tier 0, rank 0 and no limit. */
    Builder stage(int stageId, double tier, double rank, int limit) {
      stages.put(stageId, new Stage(tier, rank, limit));
      hasLimits |= limit != UNLIMITED;
      return this;
    }

    /** The order is to be replaced at this time at the latest, in ms. */
    Builder wakeMs(long timeMs) {
      wakeMs = timeMs;
      return this;
    }

    /** The order; jobs that it does not name have this tier. */
    Order build(double otherTier) {
      return new Order(this, otherTier);
    }
  }

  /** What is said of a job; of one that the order does not name, its tier alone. */
  Job job(String key) {
    return jobs.getOrDefault(key, other);
  }

  /** The tiers of the jobs that it names, by key. */
  Map<String, Double> tiers() {
    Map<String, Double> tiers = new HashMap<>();
    jobs.forEach((key, job) -> tiers.put(key, job.tier));
    return tiers;
  }

  /** What is said of a stage. */
  Stage stage(int stageId) {
    return stages.getOrDefault(stageId, PLAIN_STAGE);
  }

  /** How many stages the order names. */
  int numStages() {
    return stages.size();
  }

  /** Whether a job or stage is limited. */
  boolean hasLimits() {
    return hasLimits;
  }

  /** When the order is to be replaced at the latest; NOT_YET: when something happens. */
  long wakeMs() {
    return wakeMs;
  }

  /** The query that a Spark job is a part of: its (root) SQL execution, else the job itself. */
  static String queryOf(Properties properties, int job) {
    String execution = executionOf(properties);
    return execution == null ? "job " + job : execution;
  }

  /** The id of the (root) SQL execution; null outside SQL. */
  static String executionOf(Properties properties) {
    if (properties == null) {
      return null;
    }
    String root = properties.getProperty(ROOT_EXECUTION);
    return root == null ? properties.getProperty(EXECUTION) : root;
  }
}
