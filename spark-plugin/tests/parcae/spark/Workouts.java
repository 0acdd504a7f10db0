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

/** Jobs for the tests on real Spark; their tasks sleep, and some of them misbehave. */
public final class Workouts {
  private Workouts() {}

  /** What happens to a task. */
  interface Mishap extends java.io.Serializable {
    void strike(int stage, int task) throws Exception;
  }

  private static void sleep(long ms) throws InterruptedException {
    Thread.sleep(ms);
  }

  /** A job of three stages in a row; every task leaves a record for the next. True when nothing was lost or counted twice. */
  static boolean chain(JavaSparkContext context, String name, int numTasks, long sleepMs, Mishap mishap) {
    context.setLocalProperty("spark.job.description", name);
    List<Integer> numbers = new ArrayList<>();
    for (int number = 0; number < numTasks; number++) {
      numbers.add(number);
    }
    JavaPairRDD<Integer, Integer> first = context.parallelize(numbers, numTasks).mapToPair(number -> {
      mishap.strike(0, number);
      sleep(sleepMs);
      return new Tuple2<>(number, 1);
    });
    JavaPairRDD<Integer, Integer> second = first.reduceByKey(Integer::sum, numTasks).mapPartitionsToPair(rows -> {
      mishap.strike(1, TaskContext.getPartitionId());
      sleep(sleepMs);
      List<Tuple2<Integer, Integer>> kept = new ArrayList<>();
      rows.forEachRemaining(row -> kept.add(new Tuple2<>(row._1 % 2, row._2)));
      return kept.iterator();
    });
    List<Tuple2<Integer, Integer>> found = second.reduceByKey(Integer::sum, 2).collect();
    return found.stream().mapToInt(Tuple2::_2).sum() == numTasks;
  }

  /** So many jobs at once; how many of them came to the right result. */
  public static int jobs(JavaSparkContext context, int numJobs, int numTasks, long sleepMs) throws InterruptedException {
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

  /** Every third task fails at its first attempt. */
  public static boolean flaky(JavaSparkContext context, int numTasks) {
    return chain(context, "flaky", numTasks, 20, (stage, task) -> {
      if (task % 3 == 0 && TaskContext.get().attemptNumber() == 0) {
        throw new IllegalStateException("a task that fails once");
      }
    });
  }

  /** One task hangs at its first attempt. Milliseconds that the job took. */
  public static long straggling(JavaSparkContext context, int numTasks, long hangMs) {
    long start = System.currentTimeMillis();
    boolean isRight = chain(context, "straggling", numTasks, 20, (stage, task) -> {
      if (stage == 0 && task == 0 && TaskContext.get().attemptNumber() == 0) {
        sleep(hangMs);
      }
    });
    return isRight ? System.currentTimeMillis() - start : -1;
  }

  /** A job that would take minutes is cancelled; whether it failed for that. */
  public static boolean cancelled(JavaSparkContext context, long afterMs) throws InterruptedException {
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

  /** The last task of a stage deletes what the others left, so that the next stage cannot fetch it. */
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
