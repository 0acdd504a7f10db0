package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.Dependency;
import org.apache.spark.HashPartitioner;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.ShuffledRDD;
import scala.Product2;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.List$;
import scala.collection.immutable.Nil$;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * A Spark application that replays mixes of jobs: DAGs of stages whose tasks sleep.
 *
 * <p>Arguments: a file with the mixes and a file for the results, both JSON. A mix is {"jobs":
 * [{"name", "arrival_ms", "stages": [{"parents": [positions], "sleep_ms": [one per task]}]}]}. All
 * stages of a job lead to its last stage. A job may have a "user" and a "pool". Instead of an
 * arrival time, it may start "think_ms" after the end of the job in the position "after", unless
 * that is later than the "until_ms" of its mix.
 *
 * <p>Mixes run one after the other, and nothing runs between them. The jobs of a mix are submitted
 * at their arrival times. Without a pool, each job has its own, so that FAIR shares the cores
 * between jobs. First the JVM is warmed up by 32 stages of spark.parcae.replay.warmUp tasks (60).
 *
 * <p>Several applications begin together with spark.parcae.replay.together=true: each writes
 * results without a mix when it is warm, waits for the file of mixes, begins its mix at "begin_ms"
 * (of the epoch), and stays until that file is gone.
 *
 * <p>For every job the result holds the times of submission and of completion, in ms since the
 * start of its mix, or nothing if it was not submitted.
 */
public final class Replay {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final ClassTag<Tuple2<Integer, Integer>> PAIR =
      ClassTag$.MODULE$.apply(Tuple2.class);

  private Replay() {}

  public static void main(String[] args) throws Exception {
    if (args.length != 2) {
      System.err.println("usage: parcae.spark.Replay MIXES RESULTS");
      System.exit(2);
    }
    File mixes = new File(args[0]);
    Path results = Path.of(args[1]).toAbsolutePath();
    SparkContext context = new SparkContext(new SparkConf());
    boolean isTogether = context.conf().getBoolean("spark.parcae.replay.together", false);
    List<Object> finished = new ArrayList<>();
    try {
      warmUp(context, context.conf().getInt("spark.parcae.replay.warmUp", 60));
      if (isTogether) {
        write(results, finished);
        waitUntil(mixes, true);
      }
      for (JsonNode mix : JSON.readTree(mixes).path("mixes")) {
        finished.add(replay(context, mix, finished.size()));
        write(results, finished);
      }
      if (isTogether) {
        waitUntil(mixes, false);
      }
    } finally {
      context.stop();
    }
  }

  private static void waitUntil(File file, boolean isThere) throws InterruptedException {
    while (file.exists() != isThere) {
      Thread.sleep(50);
    }
  }

  /** Replaces the file in one step, so that a reader never sees half of the results. */
  private static void write(Path file, List<Object> mixes) throws IOException {
    Path partial = file.resolveSibling(file.getFileName() + ".partial");
    Map<String, Object> whole = new LinkedHashMap<>();
    whole.put("mixes", mixes);
    Files.write(partial, JSON.writeValueAsBytes(whole));
    Files.move(partial, file, StandardCopyOption.REPLACE_EXISTING);
  }

  /** Runs short jobs, so that the JVM compiles the code that every task runs. */
  private static void warmUp(SparkContext context, int tasks) throws InterruptedException {
    for (int round = 0; tasks > 0 && round < 4; round++) {
      List<Thread> threads = new ArrayList<>();
      for (int job = 0; job < 4; job++) {
        long[] sleeps = new long[tasks];
        RDD<Tuple2<Integer, Integer>> first = new SleepRdd(context, List.of(), sleeps);
        RDD<Tuple2<Integer, Integer>> last =
            new SleepRdd(context, List.of(shuffled(first)), sleeps);
        threads.add(new Thread(() -> run(context, last, "warm-up", "warm-up", -1)));
      }
      for (Thread thread : threads) {
        thread.start();
      }
      for (Thread thread : threads) {
        thread.join();
      }
    }
    Thread.sleep(1000);
  }

  private static Map<String, Object> replay(SparkContext context, JsonNode mix, int position)
      throws InterruptedException {
    JsonNode jobs = mix.path("jobs");
    Map<String, Object>[] entries = newEntries(jobs.size());
    List<Thread> threads = new ArrayList<>();
    List<CountDownLatch> ends = new ArrayList<>();
    jobs.forEach(job -> ends.add(new CountDownLatch(1)));
    long untilMs = mix.path("until_ms").asLong(Long.MAX_VALUE);
    long begin = mix.path("begin_ms").asLong(System.currentTimeMillis() + 200);
    for (int number = 0; number < jobs.size(); number++) {
      JsonNode job = jobs.get(number);
      RDD<Tuple2<Integer, Integer>> last = build(context, job.path("stages"));
      Map<String, Object> entry = new LinkedHashMap<>();
      entries[number] = entry;
      CountDownLatch end = ends.get(number);
      String pool = job.path("pool").asText("job-" + number);
      Thread thread = new Thread(() -> {
        try {
          long dueMs = job.path("arrival_ms").asLong();
          if (job.has("after")) {
            ends.get(job.path("after").asInt()).await();
            dueMs = System.currentTimeMillis() - begin + job.path("think_ms").asLong();
          }
          if (dueMs > untilMs) {
            return;
          }
          Thread.sleep(Math.max(0, begin + dueMs - System.currentTimeMillis()));
          context.setLocalProperty("spark.parcae.user", job.path("user").asText(null));
          entry.put("name", job.path("name").asText());
          entry.put("submitted_ms", System.currentTimeMillis() - begin);
          run(context, last, job.path("name").asText(), pool, position);
          entry.put("finished_ms", System.currentTimeMillis() - begin);
        } catch (Throwable error) {
          entry.put("error", String.valueOf(error));
        } finally {
          end.countDown();
        }
      });
      threads.add(thread);
    }
    for (Thread thread : threads) {
      thread.start();
    }
    for (Thread thread : threads) {
      thread.join();
    }
    Map<String, Object> result = new LinkedHashMap<>();
    result.put("began_ms", begin);
    result.put("jobs", entries);
    return result;
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object>[] newEntries(int count) {
    return new Map[count];
  }

  private static RDD<Tuple2<Integer, Integer>> build(SparkContext context, JsonNode stages) {
    List<RDD<Tuple2<Integer, Integer>>> built = new ArrayList<>();
    List<RDD<?>> outputs = new ArrayList<>();
    for (JsonNode stage : stages) {
      List<RDD<?>> inputs = new ArrayList<>();
      for (JsonNode parent : stage.path("parents")) {
        int position = parent.asInt();
        if (outputs.get(position) == null) {
          outputs.set(position, shuffled(built.get(position)));
        }
        inputs.add(outputs.get(position));
      }
      long[] sleeps = new long[stage.path("sleep_ms").size()];
      for (int task = 0; task < sleeps.length; task++) {
        sleeps[task] = stage.path("sleep_ms").get(task).asLong();
      }
      built.add(new SleepRdd(context, inputs, sleeps));
      outputs.add(null);
    }
    return built.get(built.size() - 1);
  }

  /** The shuffle output of a stage. All children read the same one, so that the stage runs once. */
  @SuppressWarnings({"unchecked", "rawtypes"})
  private static RDD<?> shuffled(RDD<Tuple2<Integer, Integer>> stage) {
    ClassTag<Integer> tag = ClassTag$.MODULE$.apply(Integer.class);
    RDD<? extends Product2<Integer, Integer>> pairs = stage;
    return new ShuffledRDD(pairs, new HashPartitioner(1), tag, tag, tag);
  }

  private static void run(
      SparkContext context,
      RDD<Tuple2<Integer, Integer>> last,
      String name,
      String pool,
      int mix) {
    context.setLocalProperty("spark.job.description", name);
    context.setLocalProperty("spark.scheduler.pool", pool);
    if (mix >= 0) {
      // With this key a reader of the event log can select the jobs of one mix.
      context.setLocalProperty("parcae.mix." + mix, name);
    }
    new JavaRDD<>(last, PAIR).foreachPartition(rows -> {
      while (rows.hasNext()) {
        rows.next();
      }
    });
  }

  /** One task of a stage: its index and how long it sleeps. */
  private static final class SleepPartition implements Partition, Serializable {
    private static final long serialVersionUID = 1;
    private final int index;
    private final long sleepMs;

    SleepPartition(int index, long sleepMs) {
      this.index = index;
      this.sleepMs = sleepMs;
    }

    @Override
    public int index() {
      return index;
    }

    @Override
    public int hashCode() {
      return index;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof SleepPartition && ((SleepPartition) other).index == index;
    }
  }

  /** A dependency by which every task waits for all tasks of the parent. */
  private static final class AllOf extends NarrowDependency<Object> {
    private static final long serialVersionUID = 1;

    @SuppressWarnings("unchecked")
    AllOf(RDD<?> parent) {
      super((RDD<Object>) parent);
    }

    @Override
    public scala.collection.immutable.List<Object> getParents(int partition) {
      return Nil$.MODULE$.$colon$colon((Object) 0);
    }
  }

  /** The tasks of one stage. They sleep; the first one leaves a record for the child stages. */
  private static final class SleepRdd extends RDD<Tuple2<Integer, Integer>> {
    private static final long serialVersionUID = 1;
    private final transient long[] sleeps;

    SleepRdd(SparkContext context, List<RDD<?>> parents, long[] sleeps) {
      super(context, dependencies(parents), PAIR);
      this.sleeps = sleeps;
    }

    private static scala.collection.immutable.List<Dependency<?>> dependencies(
        List<RDD<?>> parents) {
      scala.collection.immutable.List<Dependency<?>> list = List$.MODULE$.empty();
      for (RDD<?> parent : parents) {
        list = list.$colon$colon(new AllOf(parent));
      }
      return list;
    }

    @Override
    public Partition[] getPartitions() {
      Partition[] partitions = new Partition[sleeps.length];
      for (int index = 0; index < sleeps.length; index++) {
        partitions[index] = new SleepPartition(index, sleeps[index]);
      }
      return partitions;
    }

    @Override
    public Iterator<Tuple2<Integer, Integer>> compute(Partition partition, TaskContext task) {
      for (Iterator<Dependency<?>> all = dependencies().iterator(); all.hasNext(); ) {
        // The parent has one partition, which holds the output of all its tasks.
        RDD<?> parent = all.next().rdd();
        for (Iterator<?> rows = parent.iterator(parent.partitions()[0], task); rows.hasNext(); ) {
          rows.next();
        }
      }
      try {
        Thread.sleep(((SleepPartition) partition).sleepMs);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      }
      scala.collection.immutable.List<Tuple2<Integer, Integer>> rows = List$.MODULE$.empty();
      return (partition.index() == 0 ? rows.$colon$colon(new Tuple2<>(0, 0)) : rows).iterator();
    }
  }
}
