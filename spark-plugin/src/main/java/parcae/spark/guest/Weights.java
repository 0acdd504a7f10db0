package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.function.ToDoubleFunction;

/** The weights by which the cores are split among users: 1 unless the control file says more. */
final class Weights implements ToDoubleFunction<String> {
  /** The field of the control file: an object of weights by user. */
  static final String FIELD = "weights";
  private static final double MOST = 1_000;

  private volatile Map<String, Double> byUser = Map.of();

  /**
   * Reads the weights in a control file; none if it has no such field.
   *
   * @throws PolicyException a weight is no number above 0
   */
  static Map<String, Double> read(JsonNode root, String where) throws PolicyException {
    JsonNode node = root.path(FIELD);
    if (!node.isMissingNode() && !node.isObject()) {
      throw new PolicyException(where + FIELD + " is no object of weights by user");
    }
    Map<String, Double> weights = new HashMap<>();
    for (Iterator<String> users = node.fieldNames(); users.hasNext(); ) {
      String user = users.next();
      JsonNode weight = node.path(user);
      if (!weight.isNumber() || weight.asDouble() < 1 / MOST || weight.asDouble() > MOST) {
        throw new PolicyException(
            where + FIELD + " gives " + user + " " + weight + ", not a number from .001 to 1000");
      }
      weights.put(user, weight.asDouble());
    }
    return weights;
  }

  /** Sets the weights of some users; that of all others is 1. */
  void set(Map<String, Double> weights) {
    byUser = weights;
  }

  @Override
  public double applyAsDouble(String user) {
    return byUser.getOrDefault(user, 1.0);
  }
}
