package parcae.spark;

import java.util.Objects;

/** Assertions for the test programs. */
public final class Check {
  private static int count;

  private Check() {}

  public interface Action {
    void run() throws Exception;
  }

  public static void that(boolean holds, String what) {
    count++;
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  public static void same(Object found, Object expected, String what) {
    that(Objects.equals(found, expected), what + ": found " + found + ", expected " + expected);
  }

  /** Runs a test; its name is printed. */
  public static void test(String name, Action action) throws Exception {
    try {
      action.run();
    } catch (AssertionError | Exception error) {
      System.out.println("FAILED " + name);
      throw error;
    }
    System.out.println("ok " + name);
  }

  public static void done() {
    System.out.println(count + " checks");
  }
}
