package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import parcae.spark.Check;

/**
 * Names by plan must equal those of the event-log reader in Python.
 *
 * <p>The argument's file: {"plans": [{"description", "plan", "shape"}]}.
 */
final class FingerprintTest {
  public static void main(String[] args) throws Exception {
    for (JsonNode entry : new ObjectMapper().readTree(new File(args[0])).path("plans")) {
      String description = entry.path("description").asText();
      Check.same(Fingerprint.planName(description), entry.path("plan").asText(), description);
      Check.same(Fingerprint.shapeName(description), entry.path("shape").asText(), description);
    }
    Check.done();
  }
}
