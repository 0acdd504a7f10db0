package parcae.spark.guest;

import org.apache.spark.SparkConf;
import parcae.spark.Check;

/** The link does not speak to services that do not prove who they are. */
final class TrustTest {
  private TrustTest() {}

  /** For every service four arguments: its port, a setting and its value, the reason. */
  public static void main(String[] arguments) throws Exception {
    Check.test("services that are not trusted", () -> {
      for (int i = 0; i < arguments.length; i += 4) {
        SparkConf settings = new SparkConf(false)
            .set(LinkSettings.SERVICE, "127.0.0.1:" + arguments[i])
            .set(arguments[i + 1], arguments[i + 2]);
        String reason = LinkTest.reason(settings);
        Check.that(reason.contains(arguments[i + 3]), reason);
      }
    });
    System.exit(0); // even if a thread still waits
  }
}
