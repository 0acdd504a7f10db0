package parcae.spark;

import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Names of recurring jobs.
 *
 * <p>They equal the names that `parcae workload import spark-events` derives from an event log.
 */
public final class Names {
  private static final int MAX_NAME = 80;
  /** Matches spaces and digits of all scripts, as Python does. */
  private static final int UNICODE = Pattern.UNICODE_CHARACTER_CLASS;
  /** Parts of generated ids (UUIDs, long hexadecimal numbers), and Livy's numbers of statements. */
  private static final Pattern GENERATED_ID = Pattern.compile(
      "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}|[0-9a-fA-F]{16,}|\\A[ ]*[0-9]+[ ]*\\z");
  /** dbt's comment at the head of a statement, whose node is the same in every run. */
  private static final Pattern DBT_NODE = Pattern.compile(
      "[ \\t\\r\\n]*/\\*[ \\t\\r\\n]*\\{[^*]*?\"node_id\"[ ]*:[ ]*\"([^\"*\\\\]+)\"");
  /** Blanks, without a step back, which would need the stack of the thread for long ones. */
  private static final String BLANKS = "(?:[ \\r\\n]++|<br/>)++";
  /** What Spark adds to the name of a streaming query for every micro-batch. */
  private static final Pattern BATCH = Pattern.compile(
      "\\bid = [0-9a-fA-F-]+" + BLANKS + "runId = [0-9a-fA-F-]+" + BLANKS
          + "batch = (?:[0-9]+|init)",
      UNICODE);
  /** How Spark describes the jobs of a batch of a DStream. */
  private static final Pattern DSTREAM_BATCH = Pattern.compile(
      "<a href=\"/streaming/batch/\\?id=[0-9]++\">(\\[output operation [0-9]++), "
          + "batch time [0-9:.]++\\]</a>");
  /** What differs between runs in other descriptions of Spark's and Delta's. */
  private static final Pattern COUNTED = Pattern.compile(
      "^(Listing leaf files and directories)(?: for)? [0-9]+ paths?\\b.*"
          + "|(snapshot for version:) [0-9]+", UNICODE);
  /** A call site, whose folder is another one in every run where YARN copies files. */
  private static final Pattern CALL_SITE = Pattern.compile(
      "^([^ ]+ at )(?:[A-Za-z]+:)?[/\\\\].*[/\\\\]([^/\\\\]+:[0-9]+)$");
  /** The description that Spark gives a job that broadcasts a part of a query. */
  private static final Pattern BROADCAST = Pattern.compile(
      "broadcast exchange \\(runId.*", Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
  private static final String GROUP = "spark.jobGroup.id";
  private static final String DESCRIPTION = "spark.job.description";
  /** Ids that Spark adds to the names of columns, tables and expressions. */
  private static final Pattern EXPRESSION_ID =
      Pattern.compile("(?<=[A-Za-z0-9_)\\x{80}-\\x{10ffff}])#[0-9]+L?");
  private static final Pattern SPACES = Pattern.compile("[\\s\\x1c-\\x1f]+", UNICODE);
  private static final Pattern ENDS = Pattern.compile("^[ ,]+|(?<![ ,])[ ,]+\\z");

  private Names() {}

  /**
   * The name of a job, from the first of these that is given: the user's name, the job group, dbt's
   * node, the description of the SQL execution or the job, the call site, the last stage. A
   * job that broadcasts a part of a query may have nothing of its query but the first three: Spark
   * runs it on a thread of its own.
   *
   * @param properties the local properties of the job; may be null
   * @param name the name by the property that names jobs; empty if there is none
   * @param execution the description of the SQL execution; empty outside SQL
   * @param lastStage the name of the job's last stage
   */
  public static String of(Properties properties, String name, String execution, String lastStage) {
    if (!name.isEmpty()) {
      return name;
    }
    String group = get(properties, GROUP);
    String description = given(properties, DESCRIPTION);
    String site = tidy(get(properties, "callSite.short"));
    if (!isGenerated(group) && !tidy(group).isEmpty()) {
      return tidy(group);
    }
    String node = dbtNode(properties, execution);
    if (!node.isEmpty()) {
      return node;
    }
    if (!tidy(execution).isEmpty()) {
      return tidy(execution);
    }
    if (!description.isEmpty()) {
      return description;
    }
    String last = tidy(lastStage);
    return !site.isEmpty() ? site : last.isEmpty() ? "unnamed" : last;
  }

  /**
   * The name in a property that names jobs; empty if there is none. Spark 3.3 and 3.4 replace the
   * group and the description of a job that broadcasts a part of a query.
   */
  public static String given(Properties properties, String key) {
    boolean isReplaced = (key.equals(GROUP) || key.equals(DESCRIPTION))
        && BROADCAST.matcher(get(properties, DESCRIPTION)).lookingAt();
    return isReplaced || key.isEmpty() ? "" : tidy(get(properties, key));
  }

  /** The node of dbt whose statement a job runs; empty if it is none of dbt's. */
  public static String dbtNode(Properties properties, String execution) {
    for (String text : new String[] {execution, get(properties, DESCRIPTION)}) {
      Matcher comment = DBT_NODE.matcher(text);
      if (comment.lookingAt() && !tidy(comment.group(1)).isEmpty()) {
        return tidy(comment.group(1));
      }
    }
    return "";
  }

  /** Whether a job group is one that a server generated for a statement. */
  public static boolean isGenerated(String group) {
    return GENERATED_ID.matcher(group).find();
  }

  /** The value of a property; empty if it is not set. */
  public static String get(Properties properties, String key) {
    String value = properties == null ? null : properties.getProperty(key);
    return value == null ? "" : value;
  }

  /** Removes what differs between runs of one job and limits the length to 80 characters. */
  public static String tidy(String text) {
    String stable = BATCH.matcher(EXPRESSION_ID.matcher(text).replaceAll("")).replaceAll("");
    stable = DSTREAM_BATCH.matcher(stable).replaceAll("$1]");
    String line = ENDS.matcher(SPACES.matcher(stable).replaceAll(" ")).replaceAll("");
    // A group that is not part of a match is replaced by nothing.
    String uncounted = COUNTED.matcher(line).replaceAll("$1$2");
    String tidy = CALL_SITE.matcher(uncounted).replaceAll("$1$2");
    if (tidy.codePointCount(0, tidy.length()) <= MAX_NAME) {
      return tidy;
    }
    return tidy.substring(0, tidy.offsetByCodePoints(0, MAX_NAME - 1)) + "…";
  }
}
