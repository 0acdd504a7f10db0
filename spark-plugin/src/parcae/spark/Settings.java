package parcae.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.spark.SparkConf;

/** What `--conf spark.parcae.*` says. */
final class Settings {
  final String host;
  final int port;
  final byte[] secret;
  final String trustFile;
  final int timeoutMs;
  final long retryMs;
  final String jobKey;
  final String reportFile;
  final int tasksCpus;
  final int executors;
  final int fallbackExecutors;

  Settings(SparkConf conf) {
    String service = conf.get("spark.parcae.service", "127.0.0.1:7177");
    int colon = service.lastIndexOf(':');
    host = service.substring(0, Math.max(0, colon)).replaceAll("^\\[|\\]$", "");
    port = port(service, service.substring(colon + 1));
    String secretFile = conf.get("spark.parcae.secretFile", "");
    secret = secretFile.isEmpty() ? null : readSecret(Path.of(secretFile));
    trustFile = conf.get("spark.parcae.tls.ca", "");
    timeoutMs = conf.getInt("spark.parcae.timeoutMs", 0);
    retryMs = Math.max(100, conf.getLong("spark.parcae.retryMs", 10_000)); // the longest pause before the next attempt to connect
    jobKey = conf.get("spark.parcae.jobKey", "");
    reportFile = conf.get("spark.parcae.report", "");
    tasksCpus = Math.max(1, (int) Math.ceil(Double.parseDouble(conf.get("spark.task.cpus", "1"))));
    String scope = conf.get("spark.parcae.scope", "application");
    if (!scope.equals("application") && !scope.equals("cluster")) {
      throw new IllegalArgumentException("spark.parcae.scope must be application or cluster, not \"" + scope + "\"");
    }
    executors = scope.equals("cluster") ? sharedExecutors(conf) : 0;
    fallbackExecutors = Math.min(executors, conf.getInt("spark.parcae.fallbackExecutors", (executors + 1) / 2));
  }

  /** Whether slots are the executors of a cluster that several applications share. */
  boolean isShared() {
    return executors > 0;
  }

  private static int sharedExecutors(SparkConf conf) {
    int number = conf.getInt("spark.parcae.executors", 0);
    String why = "with spark.parcae.scope=cluster ";
    if (number < 1) {
      throw new IllegalArgumentException(why + "set spark.parcae.executors to the number that the cluster has room for");
    }
    if (!conf.get("spark.master", "").startsWith("spark-parcae://")) {
      throw new IllegalArgumentException(why + "the master must be spark-parcae://HOST:PORT (a standalone master)");
    }
    if (!conf.get("spark.executor.cores", "").equals("1") || !conf.get("spark.task.cpus", "1").equals("1")) {
      throw new IllegalArgumentException(why + "executors run one task at a time: set spark.executor.cores=1, spark.task.cpus=1");
    }
    if (conf.getBoolean("spark.dynamicAllocation.enabled", false)) {
      throw new IllegalArgumentException(why + "the service allocates executors: leave spark.dynamicAllocation.enabled out");
    }
    return number;
  }

  private static int port(String service, String text) {
    if (text.length() < service.length() - 1 && text.matches("[0-9]{1,5}") && Integer.parseInt(text) < 65_536) {
      return Integer.parseInt(text);
    }
    throw new IllegalArgumentException("spark.parcae.service must be HOST:PORT, not \"" + service + "\"");
  }

  private static byte[] readSecret(Path file) {
    try {
      byte[] bytes = Files.readAllBytes(file);
      int end = bytes.length;
      while (end > 0 && Character.isWhitespace(bytes[end - 1])) {
        end--;
      }
      return java.util.Arrays.copyOf(bytes, end);
    } catch (IOException error) {
      throw new UncheckedIOException("spark.parcae.secretFile: " + file + " cannot be read", error);
    }
  }
}
