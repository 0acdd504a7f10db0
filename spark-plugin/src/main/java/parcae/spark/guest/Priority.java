package parcae.spark.guest;

import java.util.Properties;
import org.apache.spark.SparkConf;
import parcae.spark.Names;

/**
 * The priorities of jobs: a query is served before all queries of lower priority in its pool. Any
 * session can ask for one, so what it asks for only lowers its own queries unless the server grants
 * more.
 */
final class Priority {
  /** The local property with which a user sets the priority of the jobs of a thread. */
  static final String PROPERTY = "spark.parcae.priority";
  private static final String MOST = "spark.parcae.priority.max";

  private final int most;

  /**
   * Reads the server's setting.
   *
   * @throws PolicyException the setting is no whole number of at least 0
   */
  Priority(SparkConf conf) throws PolicyException {
    String text = conf.get(MOST, "0").trim();
    if (!text.matches("\\+?\\d{1,9}")) {
      throw new PolicyException(
          MOST + " is " + text + "; set it to the largest priority that sessions get, a whole"
              + " number from 0 on, or leave it out for 0");
    }
    most = Integer.parseInt(text);
  }

  /** What a job with these properties asks for; 0 if nothing is set, or no whole number. */
  static int asked(Properties properties) {
    String text = Names.get(properties, PROPERTY).trim();
    if (text.isEmpty()) {
      return 0;
    }
    try {
      return Integer.parseInt(text);
    } catch (NumberFormatException error) {
      return 0;
    }
  }

  /** What it gets. */
  int granted(int asked) {
    return Math.min(asked, most);
  }

  /** What an open query gets. */
  int granted(QueryView query) {
    return granted(query.label.priority());
  }

  /** Whether a priority is set that is no whole number. */
  static boolean isWrong(Properties properties) {
    String text = Names.get(properties, PROPERTY).trim();
    return asked(properties) == 0 && !text.isEmpty() && !text.matches("[+-]?0+");
  }
}
