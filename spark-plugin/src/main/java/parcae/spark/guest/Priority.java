package parcae.spark.guest;

import java.util.HashMap;
import java.util.Map;
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
  /** Stands for all users that the setting does not name. */
  private static final String OTHERS = "*";

  private final Map<String, Integer> mostOf = new HashMap<>();

  /**
   * Reads the server's setting: a number, or users with numbers.
   *
   * @throws PolicyException the setting is neither
   */
  Priority(SparkConf conf) throws PolicyException {
    String text = conf.get(MOST, "0").trim();
    mostOf.put(OTHERS, 0);
    for (String part : (text.contains("=") ? text : OTHERS + "=" + text).split(",")) {
      int sign = part.lastIndexOf('=');
      String number = part.substring(sign + 1).trim();
      if (sign < 1 || !number.matches("\\+?\\d{1,9}")) {
        throw new PolicyException(
            MOST + " is " + text + "; set it to the largest priority that sessions get, a whole"
                + " number from 0 on, or to USER=NUMBER,USER=NUMBER, or leave it out for 0");
      }
      mostOf.put(part.substring(0, sign).trim(), Integer.parseInt(number));
    }
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

  /** What a job with these properties gets. */
  int granted(Properties properties, Persons persons) {
    int asked = asked(properties);
    if (asked <= 0) {
      return asked;
    }
    String user = mostOf.size() > 1 ? persons.of(properties) : OTHERS;
    return Math.min(asked, mostOf.getOrDefault(user, mostOf.get(OTHERS)));
  }

  /** Whether a priority is set that is no whole number. */
  static boolean isWrong(Properties properties) {
    String text = Names.get(properties, PROPERTY).trim();
    return asked(properties) == 0 && !text.isEmpty() && !text.matches("[+-]?0+");
  }
}
