package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;

/**
 * Names by the plugin must equal those of the event-log reader in Python.
 *
 * <p>The argument is a file of cases: [{"properties", "key", "execution", "stage", "name"}].
 */
final class NamesTest {
  public static void main(String[] args) throws Exception {
    for (JsonNode entry : new ObjectMapper().readTree(new File(args[0]))) {
      Properties properties = new Properties();
      for (Iterator<Map.Entry<String, JsonNode>> all = entry.path("properties").fields();
          all.hasNext(); ) {
        Map.Entry<String, JsonNode> property = all.next();
        properties.setProperty(property.getKey(), property.getValue().asText());
      }
      String name = Names.of(
          properties,
          Names.given(properties, entry.path("key").asText()),
          entry.path("execution").asText(),
          entry.path("stage").asText());
      Check.same(name, entry.path("name").asText(), entry.toString());
    }
    Check.same(Names.of(null, "", "", " "), "unnamed", "no properties");
    Check.done();
  }
}
