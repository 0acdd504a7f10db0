package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import parcae.spark.Check;

/**
 * Checks which messages of a service are read and which are refused. Proofs must equal those in the
 * file of the argument.
 */
final class WireTest {
  private static final ObjectMapper JSON = new ObjectMapper();

  private WireTest() {}

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static Wire.Orders orders(String text) throws Exception {
    return Wire.orders(Wire.decode(bytes(text.replace('\'', '"'))));
  }

  private static void refused(String word, Check.Action action) throws Exception {
    try {
      action.run();
    } catch (Wire.ProtocolException error) {
      Check.that(error.getMessage().contains(word), error.getMessage() + " lacks " + word);
      return;
    }
    throw new AssertionError("was not refused: " + word);
  }

  private static void standingOrders() throws Exception {
    Wire.Orders found = orders(
        "{'type': 'orders', 'seq': 3, 'jobs': [{'job_id': '7', 'tier': 1.5, 'weight': 2,"
            + " 'limit': 4}, {'job_id': 'job 9', 'tier': 0}], 'stages': [{'job_id': '7',"
            + " 'stage_id': 11, 'tier': 1, 'rank': 2, 'limit': null}], 'other_tier': 5,"
            + " 'wake_ms': 1000, 'executors': 3}");
    Check.same(found.seq, 3L, "seq");
    Check.same(found.wakeMs, 1000L, "wake");
    Check.same(found.executors, 3, "executors");
    Check.same(found.order.job("7").tier, 1.5, "tier");
    Check.same(found.order.job("7").weight, 2.0, "weight");
    Check.same(found.order.job("7").limit, 4, "limit");
    Check.same(found.order.job("job 9").limit, Order.UNLIMITED, "no limit");
    Check.same(found.order.job("other").tier, 5.0, "a job that is not named");
    Check.same(found.order.stage(11).tier, 1.0, "tier of a stage");
    Check.same(found.order.stage(11).rank, 2.0, "rank of a stage");
    Check.that(found.order.hasLimits(), "limits");
    Wire.Orders pushed =
        orders("{'type': 'orders', 'seq': null, 'jobs': [], 'stages': [], 'other_tier': 0}");
    Check.same(pushed.seq, -1L, "nothing was asked");
    Check.same(pushed.wakeMs, -1L, "no wake-up");
    Check.same(pushed.executors, -1, "executors of its own");
    Check.that(!pushed.order.hasLimits(), "no limits");
  }

  private static void refusedOrders() throws Exception {
    String rest = ", 'stages': [], 'other_tier': 0}";
    refused("jobs", () -> orders("{'type': 'orders', 'seq': 1, 'other_tier': 0}"));
    refused("other_tier", () -> orders("{'type': 'orders', 'jobs': [], 'stages': []}"));
    refused("unknown key", () -> orders("{'type': 'orders', 'more': 1, 'jobs': []" + rest));
    refused("job_id", () -> orders("{'type': 'orders', 'jobs': [{'tier': 1}]" + rest));
    refused("tier", () -> orders("{'type': 'orders', 'jobs': [{'job_id': '1'}]" + rest));
    refused("limit", () -> orders(
        "{'type': 'orders', 'jobs': [{'job_id': '1', 'tier': 1, 'limit': -1}]" + rest));
    refused("seq", () -> orders("{'type': 'orders', 'seq': 1.5, 'jobs': []" + rest));
  }

  private static void frames() throws Exception {
    byte[] frame = Wire.frame(Map.of("type", "ping"));
    Check.same(ByteBuffer.wrap(frame).getInt(), frame.length - 4, "length");
    JsonNode read = Wire.read(new DataInputStream(new ByteArrayInputStream(frame)));
    Check.same(read.path("type").asText(), "ping", "type");
    refused("2147483647", () -> Wire.read(new DataInputStream(
        new ByteArrayInputStream(new byte[] {127, -1, -1, -1, '{'}))));
    refused("cut off", () -> Wire.read(new DataInputStream(
        new ByteArrayInputStream(new byte[] {0, 0, 0, 9, '{', '}'}))));
    refused("not JSON", () -> Wire.decode(bytes("{\"type\": ")));
    refused("not JSON", () -> Wire.decode(bytes("[".repeat(100_000))));
    refused("without a type", () -> Wire.decode(bytes("[1]")));
    refused("without a type", () -> Wire.decode(bytes("{}")));
    try {
      Wire.decode(bytes(
          "{\"type\": \"error\", \"code\": \"no_state\", "
              + "\"message\": \"m\", \"then\": \"state\"}"));
      throw new AssertionError("an error is no message");
    } catch (Wire.ProtocolException error) {
      Check.same(error.code, "no_state", "code");
      Check.that(error.isForgiven, "after it the whole state is sent");
    }
  }

  private static void texts() {
    Check.same(Wire.text(""), "unnamed", "an empty name");
    Check.same(Wire.text("a\nb"), "a b", "control characters");
    Check.same(Wire.text("x".repeat(300)).length(), Wire.MAX_TEXT, "long names");
    Check.same(Wire.text("\ud83d"), "?", "half a character");
  }

  private static void proofs(JsonNode cases) throws Exception {
    for (JsonNode each : cases) {
      String found = Wire.proof(
          bytes(each.path("secret").asText()),
          each.path("side").asText(),
          each.path("client").asText(),
          each.path("service").asText(),
          each.path("application").asText());
      Check.same(found, each.path("mac").asText(), "proof");
    }
    Check.that(Wire.newNonce().length() >= 16, "nonce");
    Check.that(!Wire.newNonce().equals(Wire.newNonce()), "nonces differ");
  }

  /** All messages of a service in the protocol's fixtures. */
  private static LinkSettings withSecret(Path file, String secret) throws Exception {
    Files.write(file, secret.getBytes(StandardCharsets.ISO_8859_1));
    return new LinkSettings(new SparkConf(false)
        .set(LinkSettings.SERVICE, "127.0.0.1:1")
        .set("spark.parcae.secretFile", file.toString()));
  }

  /** A secret ends where it ends for the service, whatever its bytes. */
  private static void secrets() throws Exception {
    Path file = Files.createTempFile("parcae", "secret");
    for (String secret : List.of("0123456789", "0123\u001c", "0123\u001f", "0123\u0085\u00a0")) {
      byte[] bytes = secret.getBytes(StandardCharsets.ISO_8859_1);
      Check.that(Arrays.equals(withSecret(file, secret + " \t\u000b\f\r\n").secret, bytes), secret);
    }
    try {
      withSecret(file, "\n");
      throw new AssertionError("an empty secret");
    } catch (PolicyException error) {
      Check.that(error.getMessage().contains("is empty"), error.getMessage());
    }
    Files.delete(file);
  }

  private static void fixtures(Path folder) throws Exception {
    List<Path> files;
    try (Stream<Path> found = Files.list(folder)) {
      files = found.sorted().collect(Collectors.toList());
    }
    for (Path file : files) {
      try {
        JsonNode message = Wire.decode(Files.readAllBytes(file));
        if (message.path("type").asText().equals("orders")) {
          Check.that(Wire.orders(message).order != Order.NONE, file.toString());
        }
      } catch (Wire.ProtocolException error) {
        Check.that(!error.code.isEmpty(), file + ": " + error);
      }
    }
  }

  public static void main(String[] args) throws Exception {
    JsonNode cases = JSON.readTree(new File(args[0]));
    Check.test("standing orders", WireTest::standingOrders);
    Check.test("orders that are none", WireTest::refusedOrders);
    Check.test("frames", WireTest::frames);
    Check.test("texts", WireTest::texts);
    Check.test("secrets", WireTest::secrets);
    Check.test("proofs", () -> proofs(cases));
    if (args.length > 1) {
      Check.test("fixtures", () -> fixtures(Path.of(args[1])));
    }
    Check.done();
  }
}
