package parcae.spark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks the master for as many executors as the application is to have and gives back those that it is not to have, on a thread of
 * its own: both wait for the master's answer.
 */
final class ExecutorKeeper implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(ExecutorKeeper.class);
  private static final String DYNAMIC = "spark.dynamicAllocation.enabled";
  private static final long PATIENCE_MS = 1000;
  private static final long KILL_AGAIN_MS = 10_000;
  private static final long COMPLAIN_MS = 60_000;

  private final SparkContext context;
  private final ExecutorShare share;
  private final Thread thread = new Thread(this, "parcae-executors");
  private final Map<String, Long> killed = new HashMap<>();
  private volatile boolean isStopping;
  private int told;
  private long numCame;
  private long seen = -1;
  private long complainedMs;

  ExecutorKeeper(SparkContext context, ExecutorShare share) {
    this.context = context;
    this.share = share;
    thread.setDaemon(true);
  }

  /** Starts a standalone backend that asks for no executors yet: so it does where Spark allocates them dynamically. */
  static void startEmpty(SparkConf conf, Runnable start) {
    conf.set(DYNAMIC, "true");
    try {
      start.run();
    } finally {
      conf.remove(DYNAMIC);
    }
  }

  void start() {
    thread.start();
  }

  void stop() {
    isStopping = true;
    thread.interrupt();
  }

  @Override
  public void run() {
    while (!isStopping) {
      try {
        keep(share.awaitWanted(seen, PATIENCE_MS));
      } catch (InterruptedException error) {
        return;
      } catch (Throwable error) {
        if (!isStopping) {
          LOG.warn("parcae: asking the master for executors failed; it is tried again", error);
          pause();
        }
      }
    }
  }

  private void keep(ExecutorShare.Wanted wanted) {
    if (wanted.target != told || wanted.numCame != numCame) { // a smaller target that was sent before an executor came is lost
      if (!context.requestTotalExecutors(wanted.target, 0, scala.collection.immutable.Map$.MODULE$.empty())) {
        throw new IllegalStateException("the master does not answer");
      }
      if (wanted.target != told) {
        LOG.info("parcae: {} executors wanted, {} here", wanted.target, wanted.held);
      }
      told = wanted.target;
      numCame = wanted.numCame;
    }
    kill(wanted.leaving);
    seen = wanted.version;
    long now = System.currentTimeMillis();
    if (wanted.longestWaitMs > COMPLAIN_MS && now - complainedMs > COMPLAIN_MS) {
      complainedMs = now;
      LOG.warn(
          "parcae: an executor that was granted has not come for {} s: is spark.parcae.executors more than the cluster has"
              + " room for, or does an application without parcae hold some?",
          wanted.longestWaitMs / 1000);
    }
  }

  private void kill(List<String> leaving) {
    killed.keySet().retainAll(leaving);
    long now = System.currentTimeMillis();
    scala.collection.immutable.List<String> due = scala.collection.immutable.List$.MODULE$.empty();
    for (String executor : leaving) {
      if (now - killed.getOrDefault(executor, 0L) > KILL_AGAIN_MS) {
        killed.put(executor, now);
        due = due.$colon$colon(executor);
      }
    }
    if (due.nonEmpty()) {
      ((CoarseGrainedSchedulerBackend) context.schedulerBackend()).killExecutors(due, false, false, true);
    }
  }

  private void pause() {
    try {
      Thread.sleep(PATIENCE_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
