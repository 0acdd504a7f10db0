package parcae.spark.guest;

import java.util.Arrays;
import java.util.List;

/**
 * The network of the cores world, which moves the rule's tiers: `parcae.policies.network.kernels`
 * in Java.
 */
final class Network {
  private static final int FEATURES = Rule.Feature.values().length;
  private static final int HIDDEN = 12;
  /** Below this error of the estimates, the changes shrink in proportion. */
  private static final double FULL_ERROR = 0.4;
  // Where the matrices [in, out] and vectors start in the flat array of weights.
  private static final int JOB_BIAS = FEATURES * HIDDEN;
  private static final int OWN = JOB_BIAS + HIDDEN;
  private static final int CONTEXT = OWN + HIDDEN * HIDDEN;
  private static final int BIAS = CONTEXT + HIDDEN * HIDDEN;
  private static final int OUTPUT = BIAS + HIDDEN;
  /** How many weights a network has. */
  static final int WEIGHTS = OUTPUT + HIDDEN;

  private final double[] weights;

  /** A network with these weights, `WEIGHTS` of them. */
  Network(double[] weights) {
    this.weights = weights.clone();
  }

  /**
   * Moves the tiers of the queries that are not probed.
   *
   * @param facts the open queries, with all features and the tiers of the rule
   * @param estimateError recent error of the estimates
   */
  void correct(List<Rule.Facts> facts, double estimateError) {
    double[] context = new double[HIDDEN];
    for (Rule.Facts one : facts) {
      one.hidden = start(JOB_BIAS);
      add(one.hidden, one.features, 0);
      for (int unit = 0; unit < HIDDEN; unit++) {
        one.hidden[unit] = Math.tanh(one.hidden[unit]);
        context[unit] += one.hidden[unit] / facts.size();
      }
    }
    double[] base = start(BIAS);
    add(base, context, CONTEXT);
    double trust = Math.min(1, estimateError / FULL_ERROR);
    for (Rule.Facts one : facts) {
      if (!one.isTried) {
        one.query.tier += trust * shift(one.hidden, base);
      }
    }
  }

  /** How far the tier moves at full trust: between -1 and 1. */
  private double shift(double[] hidden, double[] base) {
    double[] mixed = base.clone();
    add(mixed, hidden, OWN);
    double total = 0;
    for (int unit = 0; unit < HIDDEN; unit++) {
      total += Math.tanh(mixed[unit]) * weights[OUTPUT + unit];
    }
    return Math.tanh(total);
  }

  /** The biases that start here. */
  private double[] start(int bias) {
    return Arrays.copyOfRange(weights, bias, bias + HIDDEN);
  }

  /** Adds a vector times the matrix that starts at `matrix`. */
  private void add(double[] sum, double[] vector, int matrix) {
    for (int in = 0; in < vector.length; in++) {
      for (int out = 0; out < HIDDEN; out++) {
        sum[out] += vector[in] * weights[matrix + in * HIDDEN + out];
      }
    }
  }
}
