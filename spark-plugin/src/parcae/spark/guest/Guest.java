package parcae.spark.guest;

import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.scheduler.FIFOSchedulableBuilder;
import org.apache.spark.scheduler.FairSchedulableBuilder;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.SchedulableBuilder;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver's side of the plugin: a guest in Spark's own scheduler.
 *
 * <p>A pool of ours below Spark's root pool holds all task sets, in Spark's order re-sorted by the
 * standing order, which the listener's thread replaces. No thread of Spark waits for us, and
 * nothing that we throw gets out: after the first error the pool's order is Spark's own for good.
 */
public final class Guest implements DriverPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(Guest.class);
  private static final String QUEUE = "parcae";
  private static final String PLUGINS = "spark.plugins";
  private static final String POLICY = "spark.parcae.policy";
  private static final String TRACE = "spark.parcae.trace";
  private static final String JOB_KEY = "spark.parcae.jobKey";

  private final String pluginName;
  private SparkContext context;
  private Policy policy;
  private volatile boolean isWorking = true;
  private volatile Order order = Order.NONE;

  /** The name is that by which `spark.plugins` asks for the plugin. */
  public Guest(String pluginName) {
    this.pluginName = pluginName;
  }

  /** Something that can fail. */
  interface Action {
    void run() throws Exception;
  }

  @Override
  public Map<String, String> init(SparkContext sparkContext, PluginContext pluginContext) {
    attempt("the start", () -> {
      context = sparkContext;
      SparkConf conf = sparkContext.conf();
      hideFromExecutors(conf);
      policy = Policy.read(file(conf));
      Trace trace = new Trace(conf.get(TRACE, ""));
      GuestListener listener = new GuestListener(
          this, sparkContext, new Planner(policy), conf.get(JOB_KEY, ""), trace);
      sparkContext.listenerBus().addToQueue(listener, QUEUE);
    });
    return Collections.emptyMap();
  }

  @Override
  public void registerMetrics(String applicationId, PluginContext pluginContext) {
    attempt("taking a place in Spark's scheduler", this::moveIn);
  }

  /** The order in force. */
  Order order() {
    return isWorking ? order : Order.NONE;
  }

  /** Replaces the order in force. */
  void setOrder(Order next) {
    order = next;
  }

  /** Does it unless something failed before; what it throws ends our part, in one log line. */
  void attempt(String what, Action action) {
    if (!isWorking) {
      return;
    }
    try {
      action.run();
    } catch (Throwable error) {
      fail(what, error);
    }
  }

  /** Leaves the order to Spark from now on, and says why: once. */
  synchronized void fail(String what, Throwable error) {
    if (isWorking) {
      isWorking = false;
      LOG.error("parcae: off, Spark schedules by itself: {}", Reason.of(what, error));
      LOG.debug("parcae: off", error);
    }
  }

  private static Path file(SparkConf conf) throws PolicyException {
    String path = conf.get(POLICY, "");
    if (path.isEmpty()) {
      throw new PolicyException(
          POLICY + " is not set; set it to a file that `parcae export` wrote");
    }
    return Path.of(path);
  }

  /** Executors load the plugins that the driver's settings name, and do not have the jar. */
  private void hideFromExecutors(SparkConf conf) {
    List<String> others = new ArrayList<>();
    for (String name : conf.get(PLUGINS, "").split(",")) {
      if (!name.trim().isEmpty() && !name.trim().equals(pluginName)) {
        others.add(name.trim());
      }
    }
    if (others.isEmpty()) {
      conf.remove(PLUGINS);
    } else {
      conf.set(PLUGINS, String.join(",", others));
    }
  }

  /** All that may be missing is looked up before anything is changed. */
  private void moveIn() throws ReflectiveOperationException {
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.taskScheduler();
    Field field = TaskSchedulerImpl.class.getDeclaredField("schedulableBuilder");
    field.setAccessible(true);
    Object stock = field.get(scheduler);
    Pool root = scheduler.rootPool();
    GuestPool pool = new GuestPool(this, root.schedulingMode());
    SchedulableBuilder own = builderLike(stock, pool);
    synchronized (scheduler) {
      for (Object child : root.schedulableQueue().toArray()) { // pools of the allocation file
        root.removeSchedulable((Schedulable) child);
        pool.addSchedulable((Schedulable) child);
      }
      root.addSchedulable(pool);
      for (Schedulable child : pool.schedulableQueue()) {
        GuestBuilder.show(root, child);
      }
      field.set(scheduler, new GuestBuilder(this, root, own));
    }
    LOG.info(
        "parcae: on, {} by {}, which knows {} jobs; the scheduler mode {} decides ties",
        policy.name(), policy.file(), policy.numJobs(), root.schedulingMode());
  }

  private SchedulableBuilder builderLike(Object stock, Pool pool) {
    if (stock instanceof FairSchedulableBuilder) {
      return new FairSchedulableBuilder(pool, context);
    }
    if (stock instanceof FIFOSchedulableBuilder) {
      return new FIFOSchedulableBuilder(pool);
    }
    throw new UnsupportedOperationException(
        "Spark's builder of pools is " + stock + ", not FIFO or FAIR");
  }
}
