package parcae.spark.guest;

/** What failed, why, and what to do, in one line. */
final class Reason {
  private static final String UPGRADE =
      "; the jar was compiled for another Spark: `parcae spark doctor` says more";
  private static final String REPORT = "; please report it";

  private Reason() {}

  static String of(String what, Throwable error) {
    if (error instanceof PolicyException) {
      return error.getMessage();
    }
    boolean isOther = error instanceof ReflectiveOperationException
        || error instanceof LinkageError
        || error instanceof ClassCastException
        || error instanceof UnsupportedOperationException;
    String line = what + " failed: " + error + (isOther ? UPGRADE : REPORT);
    return line.replaceAll("\\s+", " ");
  }
}
