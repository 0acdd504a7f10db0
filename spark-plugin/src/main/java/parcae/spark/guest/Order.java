package parcae.spark.guest;

import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * An order: how task sets are sorted and limited until another order replaces it. Immutable.
 *
 * <p>Task sets are served by (tier of the job + tier of the stage, running tasks of the job /
 * weight where the weight is above 0, arrival of the job, rank of the stage), smallest first. Spark
 * decides ties. A job of an order is a query: see `queryOf`.
 */
final class Order {
  /** A limit that never binds. */
  static final int UNLIMITED = Integer.MAX_VALUE;
  /** In place of a time: there is none. */
  static final long NOT_YET = -1;
  /** Before the job's number in the key of a query outside SQL. */
  static final String JOB = "job ";
  /** No order: Spark's order is in force. */
  static final Order NONE = new Builder().build(Double.MAX_VALUE);

  private static final String ROOT_EXECUTION = "spark.sql.execution.root.id";
  private static final String EXECUTION = "spark.sql.execution.id";
  private static final Stage PLAIN_STAGE = new Stage(0, 0, UNLIMITED);

  private final Map<String, Job> jobs;
  private final Map<Integer, Stage> stages;
  private final Job other;
  /** Queries that the order does not name, by pool and user; "" stands for other users. */
  private final Map<String, Map<String, Job>> others;
  private final Map<String, String> announced;
  private final long wakeMs;
  private final boolean hasLimits;

  private Order(Builder made, double otherTier) {
    jobs = made.jobs;
    stages = made.stages;
    other = new Job(otherTier, 0, UNLIMITED);
    others = made.others;
    announced = made.announced;
    wakeMs = made.wakeMs;
    hasLimits = made.hasLimits;
  }

  /**
   * The part of an order for one job. At most `limit` of its tasks run at once. With weight 0, jobs
   * of one tier are served in order of arrival.
   */
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

  /** The part of an order for one stage. Its tier is added to that of its job. */
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

  /** Builds one order; not safe for several threads. */
  static final class Builder {
    private final Map<String, Job> jobs = new HashMap<>();
    private final Map<Integer, Stage> stages = new HashMap<>();
    private final Map<String, Map<String, Job>> others = new HashMap<>();
    private final Map<String, String> announced = new HashMap<>();
    private long wakeMs = NOT_YET;
    private boolean hasLimits;

    /** Adds a job. */
    Builder job(String key, double tier, double weight, int limit) {
      jobs.put(key, new Job(tier, weight, limit));
      hasLimits |= limit != UNLIMITED;
      return this;
    }

    /** Adds a stage. A stage that is not added has tier 0, rank 0 and no limit. */
    Builder stage(int stageId, double tier, double rank, int limit) {
      stages.put(stageId, new Stage(tier, rank, limit));
      hasLimits |= limit != UNLIMITED;
      return this;
    }

    /** Sets the tier of a user's queries that are not added; "" stands for users without one. */
    Builder other(String pool, String user, double tier) {
      others.computeIfAbsent(pool, any -> new HashMap<>()).put(user, new Job(tier, 0, UNLIMITED));
      return this;
    }

    /** Names the user of a query to come, if its jobs do not. */
    Builder announced(String key, String user) {
      announced.put(key, user);
      return this;
    }

    /** Sets the time at which the order must be replaced at the latest, in ms. */
    Builder wakeMs(long timeMs) {
      wakeMs = timeMs;
      return this;
    }

    /** The order; jobs that were not added have the given tier. */
    Order build(double otherTier) {
      return new Order(this, otherTier);
    }
  }

  /** The part for a job; a job that the order does not name gets the tier of other jobs. */
  Job job(String key) {
    return jobs.getOrDefault(key, other);
  }

  /** The same, but a job that the order does not name gets the tier of others of its user. */
  Job job(String key, Properties properties, Persons persons) {
    Job named = jobs.get(key);
    if (named != null || others.isEmpty()) {
      return named == null ? other : named;
    }
    Map<String, Job> users = others.getOrDefault(persons.poolOf(properties), Map.of("", other));
    String user = persons.of(properties);
    String known = user.isEmpty() ? announced.getOrDefault(key, "") : user;
    return users.getOrDefault(known, users.get(""));
  }

  /** The tiers of the jobs that the order names, by key. */
  Map<String, Double> tiers() {
    Map<String, Double> tiers = new HashMap<>();
    jobs.forEach((key, job) -> tiers.put(key, job.tier));
    return tiers;
  }

  /** The part for a stage. */
  Stage stage(int stageId) {
    return stages.getOrDefault(stageId, PLAIN_STAGE);
  }

  /** How many stages the order names. */
  int numStages() {
    return stages.size();
  }

  /** Whether any job or stage has a limit. */
  boolean hasLimits() {
    return hasLimits;
  }

  /** When the order must be replaced at the latest, in ms; NOT_YET: not before the next event. */
  long wakeMs() {
    return wakeMs;
  }

  /** The key of the query that a Spark job belongs to: its root SQL execution, else the job. */
  static String queryOf(Properties properties, int job) {
    String execution = executionOf(properties);
    return execution == null ? JOB + job : execution;
  }

  /** The id of the root SQL execution; null outside SQL. */
  static String executionOf(Properties properties) {
    if (properties == null) {
      return null;
    }
    String root = properties.getProperty(ROOT_EXECUTION);
    return root == null ? properties.getProperty(EXECUTION) : root;
  }
}
