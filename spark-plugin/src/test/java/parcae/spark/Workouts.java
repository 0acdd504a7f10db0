package parcae.spark;

import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

/** Jobs for the tests on a real Spark. Their tasks sleep, and some of them fail or hang. */
public final class Workouts {
  private Workouts() {}

  /** A fault that happens to some tasks. */
  interface Mishap extends java.io.Serializable {
    void strike(int stage, int task) throws Exception;
  }

  private static void sleep(long ms) throws InterruptedException {
    Thread.sleep(ms);
  }

  /**
   * Runs a job of three stages in a row. Every task of the first stage makes one record, and the
   * last stage counts them. Returns whether no record was lost or counted twice.
   */
  static boolean chain(
      JavaSparkContext context, String name, int numTasks, long sleepMs, Mishap mishap) {
    context.setLocalProperty("spark.job.description", name);
    List<Integer> numbers = new ArrayList<>();
    for (int number = 0; number < numTasks; number++) {
      numbers.add(number);
    }
    JavaPairRDD<Integer, Integer> first =
        context.parallelize(numbers, numTasks).mapToPair(number -> {
          mishap.strike(0, number);
          sleep(sleepMs);
          return new Tuple2<>(number, 1);
        });
    JavaPairRDD<Integer, Integer> second =
        first.reduceByKey(Integer::sum, numTasks).mapPartitionsToPair(rows -> {
          mishap.strike(1, TaskContext.getPartitionId());
          sleep(sleepMs);
          List<Tuple2<Integer, Integer>> kept = new ArrayList<>();
          rows.forEachRemaining(row -> kept.add(new Tuple2<>(row._1 % 2, row._2)));
          return kept.iterator();
        });
    List<Tuple2<Integer, Integer>> counts = second.reduceByKey(Integer::sum, 2).collect();
    return counts.stream().mapToInt(Tuple2::_2).sum() == numTasks;
  }

  /** Runs so many jobs at once; returns how many of them gave the right result. */
  public static int jobs(JavaSparkContext context, int numJobs, int numTasks, long sleepMs)
      throws InterruptedException {
    AtomicInteger right = new AtomicInteger();
    List<Thread> threads = new ArrayList<>();
    for (int number = 0; number < numJobs; number++) {
      String name = "workout " + number % 3;
      Thread thread = new Thread(() -> {
        if (chain(context, name, numTasks, sleepMs, (stage, task) -> { })) {
          right.incrementAndGet();
        }
      });
      threads.add(thread);
      thread.start();
    }
    for (Thread thread : threads) {
      thread.join();
    }
    return right.get();
  }

  /** Runs a job in which every third task fails at its first attempt. */
  public static boolean flaky(JavaSparkContext context, int numTasks) {
    return chain(context, "flaky", numTasks, 20, (stage, task) -> {
      if (task % 3 == 0 && TaskContext.get().attemptNumber() == 0) {
        throw new IllegalStateException("a task that fails once");
      }
    });
  }

  /**
   * Runs a job in which one task hangs at its first attempt. Returns how many ms the job took, or
   * -1 if its result was wrong.
   */
  public static long straggling(JavaSparkContext context, int numTasks, long hangMs) {
    long start = System.currentTimeMillis();
    boolean isRight = chain(context, "straggling", numTasks, 20, (stage, task) -> {
      if (stage == 0 && task == 0 && TaskContext.get().attemptNumber() == 0) {
        sleep(hangMs);
      }
    });
    return isRight ? System.currentTimeMillis() - start : -1;
  }

  /** Cancels a job that would take minutes; returns whether it failed. */
  public static boolean cancelled(JavaSparkContext context, long afterMs)
      throws InterruptedException {
    AtomicInteger failed = new AtomicInteger();
    Thread thread = new Thread(() -> {
      context.setJobGroup("doomed", "doomed", true);
      try {
        chain(context, "doomed", 6, 120_000, (stage, task) -> { });
      } catch (Exception error) {
        failed.incrementAndGet();
      }
    });
    thread.start();
    Thread.sleep(afterMs);
    context.cancelJobGroup("doomed");
    thread.join(20_000);
    return failed.get() == 1;
  }

  /**
   * Runs a job in which the last task of a stage deletes the output of the others, so that the next
   * stage cannot fetch it.
   */
  public static boolean forgetful(JavaSparkContext context, int numTasks) {
    return chain(context, "forgetful", numTasks, 20, (stage, task) -> {
      if (stage == 0 && task == numTasks - 1 && TaskContext.get().stageAttemptNumber() == 0) {
        sleep(1000);
        for (File folder : SparkEnv.get().blockManager().diskBlockManager().localDirs()) {
          delete(folder);
        }
      }
    });
  }

  private static void delete(File file) {
    File[] inside = file.listFiles();
    for (File each : inside == null ? new File[0] : inside) {
      delete(each);
    }
    if (file.getName().startsWith("shuffle_") && file.getName().endsWith(".data")) {
      file.delete();
    }
  }
}
