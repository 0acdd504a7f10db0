package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Iterator;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;
import parcae.spark.Names;

/** Persons and names by the events of servers must equal those of the event-log reader. */
final class ServersTest {
  /** A Thrift server's event, as far as it is read. */
  public static final class SparkListenerThriftServerOperationStart implements SparkListenerEvent {
    private final JsonNode event;

    SparkListenerThriftServerOperationStart(JsonNode event) {
      this.event = event;
    }

    /** The job group of the statement. */
    public String groupId() {
      return event.path("groupId").asText();
    }

    /** Who runs it. */
    public String userName() {
      return event.path("userName").asText();
    }
  }

  @Test
  void personsAndNames() throws Exception {
    JsonNode cases = new ObjectMapper().readTree(ServersTest.class.getResource("/servers.json"));
    Check.that(cases.size() > 0, "there are cases");
    for (JsonNode one : cases) {
      Persons persons = new Persons();
      Properties properties = new Properties();
      String description = "";
      for (JsonNode event : one.path("events")) {
        String name = event.path("Event").asText();
        if (name.endsWith("ThriftServerOperationStart")) {
          persons.note(new SparkListenerThriftServerOperationStart(event));
        } else if (name.endsWith("SQLExecutionStart")) {
          description = event.path("description").asText();
        } else if (name.endsWith("EnvironmentUpdate")) {
          persons.ownedBy(event.path("Spark Properties").path(Persons.PROPERTY).asText());
        } else if (name.endsWith("JobStart")) {
          for (Iterator<Map.Entry<String, JsonNode>> all = event.path("Properties").fields();
              all.hasNext(); ) {
            Map.Entry<String, JsonNode> property = all.next();
            properties.setProperty(property.getKey(), property.getValue().asText());
          }
        }
      }
      String what = one.path("server").asText() + ", " + one.path("what").asText();
      Check.same(persons.of(properties), one.path("person").asText(), "the person of " + what);
      Check.same(
          Names.of(properties, "", description, ""), one.path("name").asText(),
          "the name of " + what);
    }
  }
}
