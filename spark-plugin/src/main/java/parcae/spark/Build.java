package parcae.spark;

import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/** What this jar was built for, and whether a Spark is of that kind. */
final class Build {
  /** Two numbers at the beginning of a version, and what follows them. */
  private static final String START = "(\\d+)\\.(\\d+).*";
  private static final String SCALA_LINES = "2\\.1[23]";

  private final Properties properties = new Properties();

  /** Reads what Maven wrote into the jar. */
  Build() throws IOException {
    try (InputStream stream = Build.class.getResourceAsStream("build.properties")) {
      properties.load(stream);
    }
  }

  /** Why the jar is not for this Spark, with the artifact that is; empty if it is. */
  String refusal(String spark, String scala) {
    String line = properties.getProperty("scala");
    String oldest = properties.getProperty("spark");
    String is = "Spark " + spark + " with Scala " + scala;
    if (spark.matches(START) && number(spark) < number(oldest)) {
      return is + " is too old for " + artifact(line) + ": use it with Spark "
          + oldest.replaceFirst(START, "$1.$2") + " or newer";
    }
    String needed = scala.replaceFirst(START, "$1.$2");
    if (needed.equals(line)) {
      return "";
    }
    return needed.matches(SCALA_LINES)
        ? is + " needs another jar than " + artifact(line) + ": use " + artifact(needed)
        : is + " has no jar: use " + artifact(line) + " with a Spark for Scala " + line;
  }

  private String artifact(String scala) {
    return properties.getProperty("group") + ":parcae-spark_" + scala + ":"
        + properties.getProperty("version");
  }

  private static int number(String version) {
    return Integer.parseInt(version.replaceFirst(START, "$1")) * 1_000
        + Integer.parseInt(version.replaceFirst(START, "$2"));
  }
}
