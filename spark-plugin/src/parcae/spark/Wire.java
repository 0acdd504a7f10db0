package parcae.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** The wire protocol, version 1 (protocol/README.md): messages, frames and proofs. No sockets. */
final class Wire {
  static final int VERSION = 1;
  static final int MAX_REPLY_BYTES = 8 << 20;
  private static final ObjectMapper JSON = new ObjectMapper();

  private Wire() {}

  /** Something that is not the protocol, or an `error` of the service with its code. */
  static final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1;
    final String code;
    final boolean canSync;

    ProtocolException(String message, boolean canSync) {
      this("", message, canSync);
    }

    ProtocolException(String code, String message, boolean canSync) {
      super(code.isEmpty() ? message : code + ": " + message);
      this.code = code;
      this.canSync = canSync;
    }
  }

  static final class Command {
    final String kind;
    final int slot;
    final int stageId;

    Command(String kind, int slot, int stageId) {
      this.kind = kind;
      this.slot = slot;
      this.stageId = stageId;
    }
  }

  static final class StageSlots {
    final int stageId;
    final int slots;

    StageSlots(int stageId, int slots) {
      this.stageId = stageId;
      this.slots = slots;
    }
  }

  static final class Commands {
    final long seq;
    final List<Command> commands = new ArrayList<>();
    final List<StageSlots> stages = new ArrayList<>();
    long wakeMs = -1;

    Commands(long seq) {
      this.seq = seq;
    }
  }

  // ---- what we say ----------------------------------------------------------------------------------------------------

  static Map<String, Object> message(String type) {
    Map<String, Object> message = new LinkedHashMap<>();
    message.put("type", type);
    return message;
  }

  static Map<String, Object> job(Books.Job job, boolean isSync) {
    Map<String, Object> told = new LinkedHashMap<>();
    told.put("job_id", job.id);
    told.put("name", cut(job.name));
    told.put("arrival_ms", job.arrivalMs);
    if (job.isOpen) {
      told.put("is_open", true);
    }
    told.put("stages", stages(job.stages.values(), isSync));
    return told;
  }

  static List<Object> stages(Collection<Books.Stage> stages, boolean isSync) {
    List<Object> told = new ArrayList<>();
    for (Books.Stage stage : stages) {
      Map<String, Object> entry = new LinkedHashMap<>();
      entry.put("stage_id", stage.id);
      entry.put("tasks", stage.numTasks);
      List<Integer> parents = isSync ? stage.toldParents() : new ArrayList<>(stage.parents);
      if (!parents.isEmpty()) {
        entry.put("parents", parents);
      }
      if (isSync && stage.finished() > 0 && !stage.isBlocked()) {
        entry.put("finished", stage.finished());
      }
      told.add(entry);
    }
    return told;
  }

  static Map<String, Object> sync(long seq, long clockMs, Collection<Books.Slot> slots, List<Books.Job> jobs) {
    Map<String, Object> message = message("sync");
    message.put("seq", seq);
    message.put("clock_ms", clockMs);
    List<Object> toldSlots = new ArrayList<>();
    for (Books.Slot slot : slots) {
      Map<String, Object> entry = new LinkedHashMap<>();
      entry.put("slot", slot.id);
      if (slot.partition >= 0) {
        entry.put("state", "running");
        entry.put("job_id", slot.stage.job.id);
        entry.put("stage_id", slot.stage.id);
      } else if (slot.job != null) {
        entry.put("job_id", slot.job.id);
      }
      toldSlots.add(entry);
    }
    message.put("slots", toldSlots);
    List<Object> toldJobs = new ArrayList<>();
    for (Books.Job job : jobs) {
      toldJobs.add(job(job, true));
    }
    message.put("jobs", toldJobs);
    message.put("has_instant_moves", true);
    return message;
  }

  static Map<String, Object> events(long seq, long clockMs, List<Map<String, Object>> events) {
    Map<String, Object> message = message("events");
    message.put("seq", seq);
    message.put("clock_ms", clockMs);
    message.put("events", events);
    return message;
  }

  static Map<String, Object> hello(String applicationId, String applicationName, String client, String nonce) {
    Map<String, Object> message = message("hello");
    message.put("protocol", VERSION);
    message.put("application_id", cut(applicationId.isEmpty() ? "spark" : applicationId));
    message.put("application_name", cut(applicationName));
    message.put("client", client);
    message.put("nonce", nonce);
    return message;
  }

  /** At most 256 characters, none of which controls anything or is half of one. */
  static String cut(String text) {
    StringBuilder tidy = new StringBuilder();
    text.codePoints().limit(256).forEach(c -> tidy.appendCodePoint(c < 32 ? ' ' : c >= 0xD800 && c < 0xE000 ? '?' : c));
    return tidy.toString();
  }

  static byte[] encode(Map<String, Object> message) throws JsonProcessingException {
    return JSON.writeValueAsBytes(message);
  }

  /** The message with its length before it. */
  static byte[] frame(Map<String, Object> message) throws JsonProcessingException {
    byte[] payload = encode(message);
    return ByteBuffer.allocate(4 + payload.length).putInt(payload.length).put(payload).array();
  }

  /** Writes a frame in one piece. */
  static void write(OutputStream out, Map<String, Object> message) throws IOException {
    out.write(frame(message));
    out.flush();
  }

  // ---- what the service says ------------------------------------------------------------------------------------------

  /** Reads a frame. */
  static JsonNode read(DataInputStream in) throws IOException {
    int length = in.readInt();
    if (length < 2 || length > MAX_REPLY_BYTES) {
      throw new ProtocolException("a reply of " + Integer.toUnsignedString(length) + " bytes", false);
    }
    byte[] payload = in.readNBytes(length);
    if (payload.length < length) {
      throw new ProtocolException("a reply that was cut off", false);
    }
    return decode(payload);
  }

  static JsonNode decode(byte[] payload) throws IOException {
    JsonNode node;
    try {
      node = JSON.readTree(payload);
    } catch (JsonProcessingException | StackOverflowError error) {
      throw new ProtocolException("a reply that is not JSON", false);
    }
    if (node == null || !node.isObject() || !node.path("type").isTextual()) {
      throw new ProtocolException("a reply that is no message", false);
    }
    if (node.path("type").asText().equals("error")) {
      String code = cut(node.path("code").asText());
      throw new ProtocolException(code, cut(node.path("message").asText()), node.path("then").asText().equals("sync"));
    }
    return node;
  }

  /** The commands of a reply; anything that is not as the protocol has it is refused as a whole. */
  static Commands commands(JsonNode node) throws ProtocolException {
    if (!node.path("type").asText().equals("commands")) {
      throw new ProtocolException("a " + Wire.cut(node.path("type").asText()) + " where commands were expected", false);
    }
    Commands reply = new Commands(node.path("seq").isNull() ? -1 : whole(node, "seq"));
    for (JsonNode entry : array(node, "commands")) {
      String kind = entry.path("kind").asText();
      if (!kind.equals("start") && !kind.equals("move") && !kind.equals("idle") && !kind.equals("release")) {
        throw new ProtocolException("a command \"" + Wire.cut(kind) + "\"", false);
      }
      boolean hasStage = kind.equals("start") || kind.equals("move");
      reply.commands.add(new Command(kind, number(entry, "slot"), hasStage ? number(entry, "stage_id") : -1));
    }
    for (JsonNode entry : array(node, "stages")) {
      reply.stages.add(new StageSlots(number(entry, "stage_id"), number(entry, "slots")));
    }
    reply.wakeMs = node.path("wake_ms").isNumber() ? whole(node, "wake_ms") : -1;
    return reply;
  }

  private static Iterable<JsonNode> array(JsonNode node, String key) throws ProtocolException {
    JsonNode found = node.path(key);
    if (found.isMissingNode() || found.isNull()) {
      return List.of();
    }
    if (!found.isArray()) {
      throw new ProtocolException(key + " is not a list", false);
    }
    return found;
  }

  private static int number(JsonNode node, String key) throws ProtocolException {
    long found = whole(node, key);
    if (found > Integer.MAX_VALUE) {
      throw new ProtocolException(key + " is larger than any that was told", false);
    }
    return (int) found;
  }

  private static long whole(JsonNode node, String key) throws ProtocolException {
    JsonNode found = node.path(key);
    if (!found.isIntegralNumber() || !found.canConvertToLong() || found.asLong() < 0) {
      throw new ProtocolException(key + " is not a whole number", false);
    }
    return found.asLong();
  }

  // ---- proofs ---------------------------------------------------------------------------------------------------------

  static String newNonce() {
    byte[] bytes = new byte[16];
    new SecureRandom().nextBytes(bytes);
    return hex(bytes);
  }

  /** HMAC-SHA256 of "parcae 1", the side, both nonces and the application id, each ended by a zero byte; hex. */
  static String proof(byte[] secret, String side, String clientNonce, String serviceNonce, String applicationId)
      throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(secret, "HmacSHA256"));
    for (String part : new String[] {"parcae 1", side, clientNonce, serviceNonce, applicationId}) {
      mac.update(part.getBytes(StandardCharsets.UTF_8));
      mac.update((byte) 0);
    }
    return hex(mac.doFinal());
  }

  static boolean isProof(String told, String expected) {
    return MessageDigest.isEqual(told.getBytes(StandardCharsets.UTF_8), expected.getBytes(StandardCharsets.UTF_8));
  }

  private static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder();
    for (byte b : bytes) {
      text.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
    }
    return text.toString();
  }
}
