package parcae.spark;

import java.util.Properties;
import java.util.regex.Pattern;

/** Names of recurring jobs, as `parcae workload import spark-events` makes them from the event log. */
public final class Names {
  private static final int MAX_NAME = 80;
  private static final int WHOLE = Pattern.UNICODE_CHARACTER_CLASS; // spaces and digits of all scripts, as in Python
  private static final Pattern MADE_UP = Pattern.compile("[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}|[0-9a-fA-F]{16,}");
  private static final Pattern BATCH =
      Pattern.compile("\\b(?:batch|runId|id) = [0-9a-fA-F-]+|\\bbatch = init", Pattern.CASE_INSENSITIVE | WHOLE);
  private static final Pattern INNER =
      Pattern.compile("broadcast exchange \\(runId.*", Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
  private static final Pattern NUMBERED_TABLE = Pattern.compile("#\\d+L?", WHOLE);
  private static final Pattern SPACES = Pattern.compile("[\\s\\x1c-\\x1f]+", WHOLE);
  private static final Pattern ENDS = Pattern.compile("^[ ,]+|[ ,]+\\z");

  private Names() {}

  /** The name; with a key it is the value of that property. Where all properties are silent it is that of the last stage. */
  public static String of(Properties properties, String key, String lastStage) {
    String named = key.isEmpty() ? "" : tidy(get(properties, key));
    if (!named.isEmpty()) {
      return named;
    }
    String group = get(properties, "spark.jobGroup.id");
    String description = get(properties, "spark.job.description");
    String site = tidy(get(properties, "callSite.short"));
    if (!MADE_UP.matcher(group).find() && !tidy(group).isEmpty()) {
      return tidy(group);
    }
    if (!INNER.matcher(description).lookingAt() && !tidy(description).isEmpty()) {
      return tidy(description);
    }
    String last = tidy(lastStage);
    return !site.isEmpty() ? site : last.isEmpty() ? "unnamed" : last;
  }

  public static String get(Properties properties, String key) {
    String value = properties == null ? null : properties.getProperty(key);
    return value == null ? "" : value;
  }

  public static String tidy(String text) {
    String bare = BATCH.matcher(NUMBERED_TABLE.matcher(text).replaceAll("")).replaceAll("");
    String tidy = ENDS.matcher(SPACES.matcher(bare).replaceAll(" ")).replaceAll("");
    if (tidy.codePointCount(0, tidy.length()) <= MAX_NAME) {
      return tidy;
    }
    return tidy.substring(0, tidy.offsetByCodePoints(0, MAX_NAME - 1)) + "…";
  }
}
