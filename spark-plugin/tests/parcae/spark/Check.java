package parcae.spark;

import java.util.Objects;

/** What must be, in one line each. */
final class Check {
  private static int count;

  private Check() {}

  interface Action {
    void run() throws Exception;
  }

  static void that(boolean holds, String what) {
    count++;
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  static void same(Object found, Object expected, String what) {
    that(Objects.equals(found, expected), what + ": found " + found + ", expected " + expected);
  }

  static void refused(Action action, String what) throws Exception {
    try {
      action.run();
    } catch (Wire.ProtocolException error) {
      count++;
      return;
    }
    throw new AssertionError(what + " was not refused");
  }

  /** Runs a test; its name is printed. */
  static void test(String name, Action action) throws Exception {
    try {
      action.run();
    } catch (AssertionError | Exception error) {
      System.out.println("FAILED " + name);
      throw error;
    }
    System.out.println("ok " + name);
  }

  static void done() {
    System.out.println(count + " checks");
  }
}
