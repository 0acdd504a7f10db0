package parcae.spark.guest;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Names of recurring SQL queries, derived from their physical plan. They equal the names of
 * `parcae.workloads.spark_log.plan` and are the same in every session, run and folder of files.
 */
final class Fingerprint {
  /** How names by shape begin. */
  static final String SHAPE = "shape-";
  private static final int DIGITS = 16;
  /** Parts of a plan that differ between runs of one query, in the order of replacement. */
  private static final Pattern[] VARYING = {
    // Without brackets behind a location there are none behind later ones of its line: the rest of
    // the line is kept and read once. So the time is linear, however long the line is.
    Pattern.compile(
        "Location: ([A-Za-z]++)(?:[^\\[\\n]*+\\[[^\\]\\n]*+\\]|([^\\n]*+))"),
    Pattern.compile("[A-Za-z][A-Za-z0-9+.-]{0,20}:/[^ ,)\\]\\n]*"),
    Pattern.compile("path=[^ ,)\\]\\n]*"),
    Pattern.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    Pattern.compile("\\$\\$Lambda[^ ,)\\]\\n]*"),
    Pattern.compile("@[0-9a-f]{4,16}"),
    Pattern.compile("RDD\\[[0-9]+\\]"),
    Pattern.compile("\\[(?:plan_)?id=#?[0-9]+\\]"),
  };
  /** The replacement of each of these parts. */
  private static final String[] REPLACEMENTS = {
    "Location: $1$2", "", "path=", "", "Lambda", "", "RDD", "",
  };
  private static final Pattern EXPRESSION_ID = Pattern.compile("#[0-9]+L?");
  /** An operator of the tree or the title of its paragraph in a formatted plan: has no literals. */
  private static final Pattern OPERATOR =
      Pattern.compile("[ :+*-]*[A-Za-z][^:\\n]*\\([0-9]+\\)|\\([0-9]+\\) [^\\n]*");
  private static final Pattern FIRST_WORD = Pattern.compile("[ :+*()0-9-]*[A-Za-z]*");
  /**
   * A word, and what follows a column (its id) or a function (its arguments). The quantifier keeps
   * all it took, so that a word is read once, however long a literal is.
   */
  private static final Pattern WORD = Pattern.compile("([A-Za-z_][A-Za-z0-9_.]*+)(#[0-9]|\\()?");

  private Fingerprint() {}

  /** The query's name by its whole plan, including literals. */
  static String planName(String description) {
    return "plan-" + hash(EXPRESSION_ID.matcher(withoutVarying(description)).replaceAll(""));
  }

  /** The query's name by its operators, columns and functions, without literals. */
  static String shapeName(String description) {
    String[] lines = withoutVarying(description).split("\n", -1);
    for (int i = 0; i < lines.length; i++) {
      if (!OPERATOR.matcher(lines[i]).matches()) {
        lines[i] = withoutLiterals(lines[i]);
      }
    }
    return SHAPE + hash(String.join("\n", lines));
  }

  /** The plan without the parts that differ between runs. */
  private static String withoutVarying(String description) {
    String text = description;
    for (int i = 0; i < VARYING.length; i++) {
      text = VARYING[i].matcher(text).replaceAll(REPLACEMENTS[i]);
    }
    return text;
  }

  /** A line of the plan, reduced to its first word, columns and functions. */
  private static String withoutLiterals(String line) {
    Matcher first = FIRST_WORD.matcher(line);
    int end = first.lookingAt() ? first.end() : 0;
    StringBuilder kept = new StringBuilder(line.substring(0, end));
    for (Matcher each = WORD.matcher(line).region(end, line.length()); each.find(); ) {
      if (each.group(2) != null) {
        kept.append(' ').append(each.group(1));
      }
    }
    return kept.toString();
  }

  private static String hash(String text) {
    try {
      byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
      StringBuilder digits = new StringBuilder();
      for (int i = 0; i < DIGITS / 2; i++) {
        digits.append(String.format("%02x", digest[i]));
      }
      return digits.toString();
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("this Java has no SHA-256", error);
    }
  }
}
