package parcae.spark.guest;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** The wire protocol, version 2 (protocol/README.md): messages, frames and proofs; no sockets. */
final class Wire {
  static final int VERSION = 2;
  static final int MAX_FRAME_BYTES = 8 << 20;
  static final int MAX_TEXT = 256; // characters
  static final int MAX_CORES = 1 << 17;
  /** Stands between the key of a query and a number where a key is used again. */
  private static final String AGAIN = "#";
  private static final Set<String> ORDERS_KEYS = Set.of(
      "type", "seq", "jobs", "stages", "other_tier", "wake_ms", "executors");
  private static final Set<String> JOB_KEYS = Set.of("job_id", "tier", "weight", "limit");
  private static final Set<String> STAGE_KEYS =
      Set.of("job_id", "stage_id", "tier", "rank", "limit");
  private static final ObjectMapper JSON = new ObjectMapper();

  private Wire() {}

  /** A message that breaks the protocol, or an `error` message of the service with its code. */
  static final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1;
    final String code;
    /** Whether the connection goes on after the plugin has sent a `state`. */
    final boolean isForgiven;

    ProtocolException(String message) {
      this("", message, false);
    }

    ProtocolException(String code, String message, boolean isForgiven) {
      super(code.isEmpty() ? message : code + ": " + message);
      this.code = code;
      this.isForgiven = isForgiven;
    }
  }

  /** An `orders` message: the order and what is sent with it. */
  static final class Orders {
    /** The number of the request that this answers; -1 if it answers none. */
    final long seq;
    final Order order;
    /** When to ask again at the latest, in ms since 1970; -1 for never. */
    final long wakeMs;
    /** How many executors the application should have; -1 if the service does not set that. */
    final int executors;

    Orders(long seq, Order order, long wakeMs, int executors) {
      this.seq = seq;
      this.order = order;
      this.wakeMs = wakeMs;
      this.executors = executors;
    }
  }

  /** A message that holds only its type so far. */
  static Map<String, Object> message(String type) {
    Map<String, Object> message = new LinkedHashMap<>();
    message.put("type", type);
    return message;
  }

  /** The first message of a connection. */
  static Map<String, Object> hello(String applicationId, String applicationName, String nonce) {
    Map<String, Object> message = message("hello");
    message.put("protocol", VERSION);
    message.put("application_id", applicationId);
    message.put("application_name", applicationName);
    message.put("nonce", nonce);
    return message;
  }

  /**
   * Text as the protocol accepts it: 1 to 256 characters, without control characters and without
   * single halves of surrogate pairs.
   */
  static String text(String text) {
    StringBuilder tidy = new StringBuilder();
    text.codePoints().limit(MAX_TEXT).forEach(character -> tidy.appendCodePoint(plain(character)));
    return tidy.length() == 0 ? "unnamed" : tidy.toString();
  }

  private static int plain(int character) {
    // 0xD800 to 0xDFFF are the halves of surrogate pairs.
    return character < 32 ? ' ' : character >= 0xD800 && character < 0xE000 ? '?' : character;
  }

  /**
   * The `job_id` of a query.
   *
   * @param key see `Order.queryOf`
   * @param use 1 for the first query of this key, 2 for the next one, and so on: an id is never
   *     used twice
   */
  static String jobId(String key, int use) {
    return use == 1 ? key : key + AGAIN + use;
  }

  /** The bytes of a message: its length (4 bytes, big endian), then its JSON. */
  static byte[] frame(Map<String, Object> message) throws JsonProcessingException {
    byte[] payload = JSON.writeValueAsBytes(message);
    return ByteBuffer.allocate(4 + payload.length).putInt(payload.length).put(payload).array();
  }

  /**
   * Reads one message.
   *
   * @throws ProtocolException the message breaks the protocol or is an `error`
   */
  static JsonNode read(DataInputStream in) throws IOException {
    int length = in.readInt();
    if (length < 2 || length > MAX_FRAME_BYTES) {
      throw new ProtocolException(
          "the service sent a message of " + Integer.toUnsignedString(length) + " bytes");
    }
    byte[] payload = in.readNBytes(length);
    if (payload.length < length) {
      throw new ProtocolException("the service sent a message that was cut off");
    }
    return decode(payload);
  }

  /** Parses a message; throws as `read` does. */
  static JsonNode decode(byte[] payload) throws IOException {
    JsonNode node;
    try {
      node = JSON.readTree(payload);
    } catch (JsonProcessingException | StackOverflowError error) {
      throw new ProtocolException("the service sent a message that is not JSON");
    }
    if (node == null || !node.isObject() || !node.path("type").isTextual()) {
      throw new ProtocolException("the service sent a message without a type");
    }
    if (node.path("type").asText().equals("error")) {
      String code = text(node.path("code").asText());
      boolean isForgiven = node.path("then").asText().equals("state");
      throw new ProtocolException(code, text(node.path("message").asText()), isForgiven);
    }
    return node;
  }

  /** Reads an `orders` message; refuses the whole message if any part breaks the protocol. */
  static Orders orders(JsonNode node) throws ProtocolException {
    checkKeys(node, ORDERS_KEYS, "orders");
    Order.Builder order = new Order.Builder();
    for (JsonNode job : list(node, "jobs")) {
      checkKeys(job, JOB_KEYS, "a job of the orders");
      double weight = job.has("weight") ? number(job, "weight") : 0;
      order.job(key(job), number(job, "tier"), weight, limit(job));
    }
    for (JsonNode stage : list(node, "stages")) {
      checkKeys(stage, STAGE_KEYS, "a stage of the orders");
      double tier = stage.has("tier") ? number(stage, "tier") : 0;
      double rank = stage.has("rank") ? number(stage, "rank") : 0;
      key(stage); // checked only: stage ids are unique in an application
      order.stage(small(stage, "stage_id"), tier, rank, limit(stage));
    }
    long seq = isAbsent(node, "seq") ? -1 : whole(node, "seq");
    long wakeMs = isAbsent(node, "wake_ms") ? -1 : whole(node, "wake_ms");
    int executors = isAbsent(node, "executors") ? -1 : small(node, "executors");
    return new Orders(seq, order.build(number(node, "other_tier")), wakeMs, executors);
  }

  private static void checkKeys(JsonNode node, Set<String> keys, String what)
      throws ProtocolException {
    for (Iterator<String> names = node.fieldNames(); names.hasNext(); ) {
      String name = names.next();
      if (!keys.contains(name)) {
        throw new ProtocolException(
            "the service sent an unknown key \"" + text(name) + "\" in " + what);
      }
    }
  }

  private static boolean isAbsent(JsonNode node, String key) {
    return node.path(key).isMissingNode() || node.path(key).isNull();
  }

  private static Iterable<JsonNode> list(JsonNode node, String key) throws ProtocolException {
    if (!node.path(key).isArray()) {
      throw new ProtocolException(key + " in the orders is not a list");
    }
    return node.path(key);
  }

  /** The key of the query that a `job_id` names; see `jobId`. */
  private static String key(JsonNode node) throws ProtocolException {
    if (!node.path("job_id").isTextual()) {
      throw new ProtocolException("job_id in the orders is not text");
    }
    return node.path("job_id").asText().split(AGAIN, 2)[0];
  }

  private static double number(JsonNode node, String key) throws ProtocolException {
    double value = node.path(key).asDouble(Double.NaN);
    if (!node.path(key).isNumber() || Double.isNaN(value) || Double.isInfinite(value)) {
      throw new ProtocolException(key + " in the orders is not a number");
    }
    return value;
  }

  private static int limit(JsonNode node) throws ProtocolException {
    return isAbsent(node, "limit") ? Order.UNLIMITED : small(node, "limit");
  }

  private static int small(JsonNode node, String key) throws ProtocolException {
    long value = whole(node, key);
    if (value > Integer.MAX_VALUE) {
      throw new ProtocolException(key + " in the orders is above 2147483647");
    }
    return (int) value;
  }

  private static long whole(JsonNode node, String key) throws ProtocolException {
    JsonNode value = node.path(key);
    if (!value.isIntegralNumber() || !value.canConvertToLong() || value.asLong() < 0) {
      throw new ProtocolException(key + " in the orders is not a whole number of at least 0");
    }
    return value.asLong();
  }

  /** 16 random bytes as hexadecimal digits. */
  static String newNonce() {
    byte[] bytes = new byte[16];
    new SecureRandom().nextBytes(bytes);
    return hex(bytes);
  }

  /**
   * The proof that a side knows the secret, as hexadecimal digits: the HMAC-SHA256 of "parcae 2",
   * the side, both nonces and the application's id, each followed by a zero byte.
   *
   * @param side "client" or "service"
   */
  static String proof(
      byte[] secret, String side, String clientNonce, String serviceNonce, String applicationId)
      throws GeneralSecurityException {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(secret, "HmacSHA256"));
    String[] parts = {"parcae " + VERSION, side, clientNonce, serviceNonce, applicationId};
    for (String part : parts) {
      mac.update(part.getBytes(StandardCharsets.UTF_8));
      mac.update((byte) 0);
    }
    return hex(mac.doFinal());
  }

  /** Whether two proofs are equal; the comparison takes the same time in both cases. */
  static boolean isSame(String one, String other) {
    return MessageDigest.isEqual(
        one.getBytes(StandardCharsets.UTF_8), other.getBytes(StandardCharsets.UTF_8));
  }

  private static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder();
    for (byte b : bytes) {
      text.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
    }
    return text.toString();
  }
}
