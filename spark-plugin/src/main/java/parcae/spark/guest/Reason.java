package parcae.spark.guest;

/** Describes an error in one line: what failed, why, and what to do. */
final class Reason {
  private static final String UPGRADE =
      "; the jar was compiled for another Spark: `parcae spark doctor` says more";
  private static final String REPORT = "; please report it";

  private Reason() {}

  static String of(String what, Throwable error) {
    if (error instanceof PolicyException) {
      return error.getMessage();
    }
    boolean isOtherSpark = error instanceof ReflectiveOperationException
        || error instanceof LinkageError
        || error instanceof ClassCastException
        || error instanceof UnsupportedOperationException;
    String line = what + " failed: " + error + (isOtherSpark ? UPGRADE : REPORT);
    return line.replaceAll("\\s+", " ");
  }
}
