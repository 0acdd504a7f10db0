package parcae.spark.guest;

import java.util.Properties;
import parcae.spark.Names;

/** The priority of a job: its query is served before all queries of lower priority in its pool. */
final class Priority {
  /** The local property with which a user sets the priority of the jobs of a thread. */
  static final String PROPERTY = "spark.parcae.priority";

  private Priority() {}

  /** The priority of a job with these properties; 0 if none is set, or no whole number. */
  static int of(Properties properties) {
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

  /** Whether a priority is set that is no whole number. */
  static boolean isWrong(Properties properties) {
    String text = Names.get(properties, PROPERTY).trim();
    return of(properties) == 0 && !text.isEmpty() && !text.matches("[+-]?0+");
  }
}
