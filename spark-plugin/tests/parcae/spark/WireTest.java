package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The wire against the protocol's fixtures (first argument: their folder), and proofs against Python's (second: a file of cases).
 * What the plugin says is written to the third, a JSON list, for Python to decode.
 */
final class WireTest {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] args) throws Exception {
    Path fixtures = Path.of(args[0]);
    Check.test("the service's messages decode", () -> serviceMessages(fixtures.resolve("service")));
    Check.test("nothing else passes for commands", () -> invalid(fixtures));
    Check.test("frames", WireTest::frames);
    Check.test("proofs", () -> proofs(Path.of(args[1])));
    Check.test("texts", WireTest::texts);
    JSON.writeValue(Path.of(args[2]).toFile(), messages());
    Check.done();
  }

  private static byte[] file(Path folder, String name) throws Exception {
    return Files.readAllBytes(folder.resolve(name));
  }

  private static void serviceMessages(Path folder) throws Exception {
    Wire.Commands reply = Wire.commands(Wire.decode(file(folder, "commands.json")));
    Check.same(reply.seq, 2L, "seq");
    Check.same(reply.commands.stream().map(c -> c.kind + c.slot + c.stageId).collect(Collectors.toList()),
        List.of("start10", "move20", "idle3-1", "release4-1"), "commands");
    Check.same(reply.stages.size() + ":" + reply.stages.get(0).stageId + ":" + reply.stages.get(0).slots, "1:0:2", "stages");
    Check.same(reply.wakeMs, 9000L, "wake_ms");
    Check.same(Wire.decode(file(folder, "welcome.json")).path("timeout_ms").asInt(), 200, "welcome");
    Check.same(Wire.decode(file(folder, "challenge.json")).path("nonce").asText().length(), 32, "challenge");
    Check.same(Wire.decode(file(folder, "pong.json")).path("seq").asInt(), 3, "pong");
    try {
      Wire.decode(file(folder, "error.json"));
      throw new AssertionError("an error must be thrown");
    } catch (Wire.ProtocolException error) {
      Check.that(error.canSync && error.code.equals("unknown_slot"), "the error's code and what follows");
    }
    Check.refused(() -> Wire.commands(Wire.decode(file(folder, "pong.json"))), "a pong for commands");
  }

  private static Wire.Commands parse(String text) throws Exception {
    return Wire.commands(Wire.decode(text.getBytes(StandardCharsets.UTF_8)));
  }

  private static void invalid(Path fixtures) throws Exception {
    for (String folder : new String[] {"invalid", "client"}) {
      try (Stream<Path> files = Files.list(fixtures.resolve(folder))) {
        for (Path file : (Iterable<Path>) files::iterator) {
          JsonNode node = JSON.readTree(file.toFile());
          String text = folder.equals("invalid") ? node.path("payload").asText() : node.toString();
          Check.refused(() -> parse(text), file.toString());
        }
      }
    }
    String slot = "{\"type\":\"commands\",\"seq\":1,"
        + "\"commands\":[{\"kind\":\"start\",\"slot\":%s,\"job_id\":0,\"stage_id\":%s}]}";
    Check.same(parse(String.format(slot, "1", "2")).commands.size(), 1, "a start");
    for (String bad : new String[] {"-1", "1.5", "\"1\"", "null", "true", "[]", "9223372036854775808", "4294967296"}) {
      Check.refused(() -> parse(String.format(slot, bad, "2")), "slot " + bad);
      Check.refused(() -> parse(String.format(slot, "1", bad)), "stage " + bad);
    }
    for (String text : new String[] {
      "", "x", "null", "[]", "7", "{}", "{\"type\":7}", "{\"type\":\"commands\"}", "{\"type\":\"commands\",\"seq\":\"1\"}",
      "{\"type\":\"commands\",\"seq\":1,\"commands\":{}}", "{\"type\":\"commands\",\"seq\":1,\"commands\":[7]}",
      "{\"type\":\"commands\",\"seq\":1,\"commands\":[{\"kind\":\"explode\",\"slot\":1}]}",
      "{\"type\":\"commands\",\"seq\":1,\"stages\":[{\"stage_id\":1}]}", "{\"type\":\"commands\",\"seq\":1,\"stages\":\"x\"}",
      "{\"type\":\"commands\",\"seq\":1,\"wake_ms\":-5}", "[".repeat(100_000)
    }) {
      Check.refused(() -> parse(text), text.length() > 100 ? "deep nesting" : text);
    }
  }

  private static JsonNode read(byte[] bytes) throws Exception {
    return Wire.read(new DataInputStream(new ByteArrayInputStream(bytes)));
  }

  private static void frames() throws Exception {
    byte[] frame = Wire.frame(Wire.message("bye"));
    Check.same(ByteBuffer.wrap(frame).getInt(), frame.length - 4, "the length before the payload");
    Check.same(read(frame).path("type").asText(), "bye", "a frame read back");
    for (int length : new int[] {0x7fffffff, -1, 0, 1, Wire.MAX_REPLY_BYTES + 1}) {
      Check.refused(() -> read(ByteBuffer.allocate(8).putInt(length).array()), "a frame of " + length);
    }
    Check.refused(() -> read(ByteBuffer.allocate(8).putInt(100).array()), "a frame cut off");
    try {
      read(new byte[] {0, 0});
      throw new AssertionError("half a length was read");
    } catch (EOFException error) {
      Check.that(true, "");
    }
  }

  private static void proofs(Path cases) throws Exception {
    for (JsonNode entry : JSON.readTree(cases.toFile())) {
      byte[] secret = entry.path("secret").asText().getBytes(StandardCharsets.UTF_8);
      String made = Wire.proof(secret, entry.path("side").asText(), entry.path("client").asText(), entry.path("service").asText(),
          entry.path("application").asText());
      Check.same(made, entry.path("mac").asText(), entry.toString());
      Check.that(Wire.isProof(made, entry.path("mac").asText()) && !Wire.isProof("", made), "comparison");
    }
    Check.that(!Wire.newNonce().equals(Wire.newNonce()) && Wire.newNonce().matches("[0-9a-f]{32}"), "nonces");
  }

  private static void texts() throws Exception {
    Check.same(Wire.cut("a\u0000b\nc"), "a b c", "control characters");
    Check.same(Wire.cut("x".repeat(300)).length(), 256, "length");
    Check.same(Wire.cut("\uD83D\uDE00".repeat(300)).codePointCount(0, 512), 256, "characters, not halves of them");
    Check.same(Wire.cut("a\uD83Db"), "a?b", "half a character");
  }

  /** One of everything that the plugin says, out of books that saw a little of everything. */
  private static List<Object> messages() throws Exception {
    Books books = new Books();
    books.executorAdded("1", 4);
    Books.StageShape[] stages = {BooksTest.stage(7, 4), BooksTest.stage(8, 2, 7)};
    books.jobSeen(BooksTest.job(3, "query 5", "caf\u00e9 \uD83D\uDE00", true, stages), 1000);
    books.submitted(7, 0, 4);
    books.launched(7, 0, "");
    List<Object> messages = new ArrayList<>();
    messages.add(Wire.hello("", "", "parcae-spark", Wire.newNonce()));
    messages.add(Wire.hello("app\u0001-1\uD83D", "x".repeat(300), "parcae-spark", Wire.newNonce()));
    Map<String, Object> proof = Wire.message("proof");
    proof.put("mac", Wire.proof(new byte[16], "client", "a", "b", "c"));
    messages.add(proof);
    messages.add(books.takeSync(1, 2000));
    books.obey(BooksTest.commands(new String[] {"start 1 7", "start 2 7"}, "7 3"));
    books.launched(7, 1, "");
    books.launched(7, 2, "");
    books.succeeded(7, 0, "", 800);
    books.failed(7, 1, "", false);
    books.jobSeen(BooksTest.job(4, "query 5", "x", true, BooksTest.stage(9, 1, 8)), 2100);
    books.jobSeen(BooksTest.job(5, "job 5", "other", false, BooksTest.stage(10, 5)), 2200);
    books.sparkJobEnded(5, List.of(10), false);
    messages.add(Wire.events(2, 2300, books.takeEvents()));
    messages.add(books.takeSync(3, 2400));
    books.queryEnded("query 5", true);
    messages.add(Wire.events(4, 2500, books.takeEvents()));
    messages.add(Wire.events(5, 2600, books.takeEvents()));
    Map<String, Object> ping = Wire.message("ping");
    ping.put("seq", 5);
    messages.add(ping);
    messages.add(Wire.message("bye"));
    return messages;
  }
}
