package parcae.spark.guest;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/** A standing order: a tier for every open query, smallest first. Immutable. */
final class Order {
  /** No order: Spark's own is in force. */
  static final Order NONE = new Order(Map.of(), Double.MAX_VALUE);

  private static final String ROOT_EXECUTION = "spark.sql.execution.root.id";
  private static final String EXECUTION = "spark.sql.execution.id";

  private final Map<String, Double> tiers;
  private final double otherTier;

  /** Tiers by query, and the tier of queries that the planner has not heard of yet. */
  Order(Map<String, Double> tiers, double otherTier) {
    this.tiers = new HashMap<>(tiers);
    this.otherTier = otherTier;
  }

  /** The tiers by query. */
  Map<String, Double> tiers() {
    return Collections.unmodifiableMap(tiers);
  }

  /** The tier of a Spark job's task sets. */
  double tierOf(Properties properties, int job) {
    Double tier = tiers.get(queryOf(properties, job));
    return tier == null ? otherTier : tier;
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
