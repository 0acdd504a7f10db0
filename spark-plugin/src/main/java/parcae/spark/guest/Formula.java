package parcae.spark.guest;

import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Locale;

/**
 * A formula over features of a query: `parcae.policies.formula.kernels` in Java, bit for bit.
 *
 * <p>Only one thread may use it at a time.
 */
final class Formula {
  /** What a formula may name; Spark knows no deadlines. */
  enum Feature {
    REM, TOTAL, SERVICE, PATH, WIDTH, STAGES, ERROR, AGE, RUNNING, FAIR, OVERDRAFT, SHARE, QUERIES,
    CORES
  }

  private enum Step {
    ABS, SQRT, LOG, EXP, ADD, SUBTRACT, MULTIPLY, DIVIDE, MIN, MAX, LESS, CHOOSE;

    int taken() {
      return this == CHOOSE ? 3 : ordinal() < ADD.ordinal() ? 1 : 2;
    }
  }

  private static final double LARGEST = 1e300;
  private static final double SMALLEST = 1e-300;
  private static final double LARGEST_EXPONENT = 690;
  private static final double LN2 = 0.6931471803691238; // 32 bits, so that its multiples are exact
  private static final double LN2_REST = 1.9082149292705877e-10;
  /** The order is renewed after this time if it changes with time alone. */
  private static final long RENEW_MS = 200;

  private final Object[] program; // a Feature, a Step or a Double
  private final double[] stack;
  private final Rule stageOrder = Rule.ofPaths();
  private final double[] features = new double[Feature.values().length]; // by ordinal

  /**
   * Creates a formula.
   *
   * @param words features, numbers and steps in postfix order, as `parcae export` writes them
   * @throws IllegalArgumentException they are no formula
   */
  Formula(List<String> words) {
    program = words.stream().map(Formula::read).toArray();
    stack = new double[program.length + 1];
    int held = 0;
    for (Object each : program) {
      int taken = each instanceof Step ? ((Step) each).taken() : 0;
      if (held < taken) {
        throw new IllegalArgumentException("takes more values than there are");
      }
      held += 1 - taken;
    }
    if (held != 1) {
      throw new IllegalArgumentException("leaves " + held + " values");
    }
  }

  private static Object read(String word) {
    String upper = word.toUpperCase(Locale.ROOT);
    for (Enum<?>[] all : List.of(Feature.values(), Step.values())) {
      for (Enum<?> one : all) {
        if (one.name().equals(upper)) {
          return one;
        }
      }
    }
    return Double.valueOf(word);
  }

  private boolean uses(Feature... some) {
    return Arrays.stream(some).anyMatch(Arrays.asList(program)::contains);
  }

  Formula set(Feature feature, double value) {
    features[feature.ordinal()] = value;
    return this;
  }

  /** The value for the features that are set. */
  double value() {
    int top = -1;
    for (Object each : program) {
      double value;
      if (each instanceof Step) {
        top -= ((Step) each).taken() - 1;
        value = each == Step.CHOOSE
            ? stack[top + 1] != 0 ? stack[top] : stack[top + 2]
            : result((Step) each, stack[top], stack[top + 1]);
      } else {
        top++;
        value = each instanceof Feature ? features[((Feature) each).ordinal()] : (Double) each;
      }
      stack[top] = Math.min(Math.max(value, -LARGEST), LARGEST);
    }
    return stack[0];
  }

  private static double result(Step step, double a, double b) {
    switch (step) {
      case ABS: return Math.abs(a);
      case SQRT: return Math.sqrt(Math.max(a, 0));
      case LOG: return logarithm(Math.max(a, SMALLEST));
      case EXP: return exponential(Math.min(Math.max(a, -LARGEST_EXPONENT), LARGEST_EXPONENT));
      case ADD: return a + b;
      case SUBTRACT: return a - b;
      case MULTIPLY: return a * b;
      case DIVIDE: return b != 0 ? a / b : a == 0 ? 0 : Math.copySign(LARGEST, a);
      case MIN: return b < a ? b : a;
      case MAX: return b > a ? b : a;
      default: return a < b ? 1 : 0;
    }
  }

  private static double logarithm(double x) {
    int power = Math.getExponent(x) + 1;
    double mantissa = Math.scalb(x, -power);
    if (mantissa < 0.7071067811865476) {
      mantissa *= 2;
      power--;
    }
    double ratio = (mantissa - 1) / (mantissa + 1);
    double total = 0;
    for (int term = 10; term >= 0; term--) {
      total = total * (ratio * ratio) + 2 / (2.0 * term + 1);
    }
    return power * LN2 + (ratio * total + power * LN2_REST);
  }

  private static double exponential(double x) {
    double power = Math.floor(x / LN2 + 0.5);
    double rest = (x - power * LN2) - power * LN2_REST;
    double total = 1;
    for (int term = 14; term > 0; term--) {
      total = 1 + total * rest / term;
    }
    return Math.scalb(total, (int) power);
  }

  /** Tier of a query that the planner has not seen yet: that of one with the mean work. */
  double otherTier(double meanWorkMs) {
    double queries = features[Feature.QUERIES.ordinal()];
    double cores = features[Feature.CORES.ordinal()];
    Arrays.fill(features, 0);
    set(Feature.REM, meanWorkMs).set(Feature.TOTAL, meanWorkMs).set(Feature.FAIR, meanWorkMs);
    set(Feature.QUERIES, queries + 1).set(Feature.CORES, cores);
    return set(Feature.ERROR, 1).set(Feature.WIDTH, 1).set(Feature.STAGES, 1).value();
  }

  /**
   * Sets the tiers of the queries and the ranks of their stages.
   *
   * @param open the open queries
   * @param guessMs the duration of a task of which nothing is known
   * @return when to plan again at the latest, or Order.NOT_YET
   */
  long plan(Collection<Query> open, long nowMs, int cores, double guessMs) {
    set(Feature.QUERIES, open.size()).set(Feature.CORES, cores);
    for (Query query : open) {
      describe(query, nowMs, guessMs);
      if (query.account != null) {
        set(Feature.OVERDRAFT, query.account.overdraftMs());
        set(Feature.SHARE, query.account.running() / cores);
      }
      query.tier = value();
      query.limit = Order.UNLIMITED;
      stageOrder.orderStages(query);
    }
    boolean isTimed = open.size() > 1 && uses(Feature.AGE, Feature.SERVICE);
    return isTimed ? nowMs + RENEW_MS : Order.NOT_YET; // `Ledgers` renews between users
  }

  private void describe(Query query, long nowMs, double guessMs) {
    double tookMs = 0;
    double totalMs = 0;
    double servedMs = 0;
    double pathMs = 0;
    int running = 0;
    int pending = 0;
    int left = 0;
    for (StageRow row : query.rows()) {
      double taskMs = row.finished > 0 ? row.executedMs / row.finished : guessMs;
      tookMs += row.executedMs;
      totalMs += row.tasks * row.taskMs;
      servedMs += row.executedMs;
      servedMs += row.running() > 0 ? 0.5 * row.running() * taskMs : 0;
      running += row.running();
      pending += row.isPending() ? row.tasks - row.started : 0;
      if (row.finished < row.tasks) {
        left++;
        pathMs = Math.max(pathMs, row.pathMs);
      }
    }
    double factor = Estimates.correction(query);
    double remMs = Estimates.remainingMs(query);
    set(Feature.REM, remMs).set(Feature.TOTAL, query.priorMs > 0 ? remMs + tookMs : totalMs);
    set(Feature.SERVICE, servedMs).set(Feature.PATH, pathMs * factor);
    set(Feature.WIDTH, running + pending).set(Feature.STAGES, left).set(Feature.ERROR, factor);
    set(Feature.AGE, nowMs - query.arrivalMs).set(Feature.RUNNING, running);
    set(Feature.FAIR, query.endMs - nowMs);
  }
}
