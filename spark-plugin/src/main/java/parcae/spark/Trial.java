package parcae.spark;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/** A short query with which `parcae spark doctor --run` tries the plugin in a real Spark. */
public final class Trial {
  private static final int NUMBERS = 1_000;
  private static final int TASKS = 4;

  private Trial() {}

  /** Prints the sum of the first numbers, which is 499500. */
  public static void main(String[] arguments) {
    SparkSession session = SparkSession.builder().appName("parcae spark doctor").getOrCreate();
    String query = "select sum(id) from range(0, " + NUMBERS + ", 1, " + TASKS + ")";
    Row[] rows = (Row[]) session.sql(query).collect();
    session.stop();
    System.out.println("sum " + rows[0].getLong(0));
  }
}
