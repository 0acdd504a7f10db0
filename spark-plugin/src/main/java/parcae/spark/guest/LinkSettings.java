package parcae.spark.guest;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.apache.spark.SparkConf;

/** The settings `spark.parcae.*` of the link: the service's address and how to connect to it. */
final class LinkSettings {
  static final String SERVICE = "spark.parcae.service";
  static final String FALLBACK = "spark.parcae.fallbackExecutors";
  private static final String SECRET = "spark.parcae.secretFile";
  private static final String ORDER_TTL = "spark.parcae.orderTtlMs";
  private static final String RETRY = "spark.parcae.retryMs";
  private static final int MIN_MS = 100;
  /** The bytes at the end of the secret's file that do not count, as for the service. */
  private static final String WHITE_SPACE = " \t\n\r\u000b\f";

  final String host;
  final int port;
  /** The secret that both sides must know; null if none is set. */
  final byte[] secret;
  /** Certificates (PEM) that may sign the service's certificate; null without TLS. */
  final Path trustFile;
  /** How long an order stays in force after the service's last message. */
  final long orderTtlMs;
  /** The longest pause before the next attempt to connect. */
  final long retryMs;

  /**
   * Reads the settings.
   *
   * @throws PolicyException a setting is not valid; the message says what to set instead
   */
  LinkSettings(SparkConf conf) throws PolicyException {
    String service = conf.get(SERVICE);
    int colon = service.lastIndexOf(':');
    host = service.substring(0, Math.max(0, colon)).replaceAll("^\\[|\\]$", "");
    port = port(service, service.substring(colon + 1));
    String secretFile = conf.get(SECRET, "");
    secret = secretFile.isEmpty() ? null : readSecret(Path.of(secretFile));
    String trust = conf.get("spark.parcae.tls.ca", "");
    trustFile = trust.isEmpty() ? null : Path.of(trust);
    orderTtlMs = milliseconds(conf, ORDER_TTL, 5_000);
    retryMs = milliseconds(conf, RETRY, 10_000);
  }

  /** The service's address as HOST:PORT. */
  String address() {
    return host + ":" + port;
  }

  private static int port(String service, String text) throws PolicyException {
    boolean hasHost = text.length() < service.length() - 1;
    if (hasHost && text.matches("[0-9]{1,5}") && Integer.parseInt(text) < 65_536) {
      return Integer.parseInt(text);
    }
    throw new PolicyException(SERVICE + " is \"" + service + "\"; set it to HOST:PORT");
  }

  static long milliseconds(SparkConf conf, String name, int defaultMs)
      throws PolicyException {
    String text = conf.get(name, String.valueOf(defaultMs));
    if (!text.matches("[0-9]{1,9}") || Integer.parseInt(text) < MIN_MS) {
      throw new PolicyException(
          name + " is \"" + text + "\"; set it to a whole number of at least " + MIN_MS);
    }
    return Integer.parseInt(text);
  }

  private static byte[] readSecret(Path file) throws PolicyException {
    try {
      byte[] bytes = Files.readAllBytes(file);
      int end = bytes.length;
      while (end > 0 && WHITE_SPACE.indexOf(bytes[end - 1]) >= 0) {
        end--;
      }
      if (end == 0) {
        throw new PolicyException(
            SECRET + " is " + file + ", which is empty; set it to the file of the secret");
      }
      return Arrays.copyOf(bytes, end);
    } catch (IOException error) {
      throw new PolicyException(
          SECRET + " is " + file + ", which cannot be read (" + error + "); set it to a file");
    }
  }
}
