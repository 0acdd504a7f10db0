package parcae.spark;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.sql.SparkSession;

/**
 * An application of a long query and a short one, submitted in that order. Executors need none of
 * its classes. It does not stop its session, so that a thread that keeps the driver alive would be
 * noticed.
 *
 * <p>Arguments: a file for the answer, and how long a task of the long query sleeps, in ms.
 */
public final class TwoQueries {
  private static final int LONG = 40;
  private static final int SHORT = 2;
  private static final int SHORT_MS = 100;
  private static final int HEAD_START_MS = 500;

  private TwoQueries() {}

  /** Writes how many tasks gave a result, by query, and whether the short query was first. */
  public static void main(String[] args) throws Exception {
    SparkSession spark = SparkSession.builder().appName("two queries").getOrCreate();
    run(spark, "warm", SHORT, 1); // so that loading Spark's code delays neither query
    AtomicReference<String> answer = new AtomicReference<>("no answer");
    Thread thread = new Thread(() -> {
      long count = run(spark, "long", LONG, Integer.parseInt(args[1]));
      answer.set(count + " " + answer.get());
    });
    thread.start();
    Thread.sleep(HEAD_START_MS);
    long count = run(spark, "short", SHORT, SHORT_MS);
    answer.compareAndSet("no answer", count + ", short first");
    thread.join();
    Path made = Path.of(args[0] + ".part");
    Files.writeString(made, answer.get());
    Files.move(made, Path.of(args[0]));
  }

  private static long run(SparkSession spark, String name, int tasks, int sleepMs) {
    spark.sparkContext().setLocalProperty("spark.parcae.jobKey", name);
    String sleep = "java_method('java.lang.Thread', 'sleep', " + sleepMs + "L)";
    String rows = "range(0, " + tasks + ", 1, " + tasks + ")";
    String query = "select count(x) from (select " + sleep + " as x from " + rows + ")";
    return spark.sql(query).head().getLong(0);
  }
}
