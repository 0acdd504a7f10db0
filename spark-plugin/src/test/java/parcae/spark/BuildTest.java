package parcae.spark;

import org.apache.spark.package$;
import org.junit.jupiter.api.Test;
import scala.util.Properties;

/** A jar is refused where it cannot work, in one line that names the artifact to use. */
final class BuildTest {
  private static void refused(String spark, String scala, String use) throws Exception {
    String line = new Build().refusal(spark, scala);
    Check.that(line.startsWith("Spark " + spark + " with Scala " + scala + " "), line);
    Check.that(line.contains("use ") && line.contains("io.github."), line);
    Check.that(line.contains(use) && !line.contains("\n"), line);
  }

  @Test
  void theSparkOfTheTests() throws Exception {
    String scala = Properties.versionNumberString();
    Check.same(new Build().refusal(package$.MODULE$.SPARK_VERSION(), scala), "", "this Spark");
    for (String spark : new String[] {"3.3.0", "3.10.1", "4.0.0-vendor.7", "10.1", "nightly"}) {
      Check.same(new Build().refusal(spark, scala), "", spark);
    }
  }

  @Test
  void theOtherScalaLine() throws Exception {
    String other = Properties.versionNumberString().startsWith("2.13.") ? "2.12" : "2.13";
    refused("3.5.9", other + ".18", ":parcae-spark_" + other + ":");
  }

  @Test
  void whatIsTooOldOrUnknown() throws Exception {
    refused("3.2.4", Properties.versionNumberString(), " with Spark 3.3 or newer");
    refused("2.4.8", Properties.versionNumberString(), " with Spark 3.3 or newer");
    refused("4.9.0", "3.7.1", " with a Spark for Scala 2.1");
  }
}
