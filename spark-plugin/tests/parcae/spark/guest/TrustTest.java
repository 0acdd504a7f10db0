package parcae.spark.guest;

import parcae.spark.Check;

/** The link does not speak to services whose certificates it must not accept. */
final class TrustTest {
  private TrustTest() {}

  /** For every service three arguments: its port, the file of trusted certificates, the reason. */
  public static void main(String[] arguments) throws Exception {
    Check.test("certificates", () -> {
      for (int i = 0; i < arguments.length; i += 3) {
        String reason = LinkTest.reason("127.0.0.1:" + arguments[i], arguments[i + 1]);
        Check.that(reason.contains(arguments[i + 2]), reason);
      }
    });
    System.exit(0); // even if a thread still waits
  }
}
