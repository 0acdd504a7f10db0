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
  private Planning planning;
  private Trace trace;
  private LinkSettings service;
  private Picture picture;
  private ExecutorShare executors;
  private volatile Link link;
  private volatile TaskSchedulerImpl scheduler; // once the pool is in it
  private volatile boolean isWorking = true;
  private volatile Order order = Order.NONE;
  private volatile boolean mayLimit;

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
      int taskCores = Math.max(1, conf.getInt("spark.task.cpus", 1));
      trace = new Trace(conf.get(TRACE, ""));
      List<Follower> followers = followers(conf);
      GuestListener listener =
          new GuestListener(this, context, followers, conf.get(JOB_KEY, ""), taskCores);
      sparkContext.listenerBus().addToQueue(listener, QUEUE);
      if (planning != null) {
        planning.start();
      }
    });
    return Collections.emptyMap();
  }

  @Override
  public void registerMetrics(String applicationId, PluginContext pluginContext) {
    attempt("taking a place in Spark's scheduler", this::moveIn);
    if (service != null) {
      attempt("calling the service", () -> callService(applicationId));
    }
  }

  @Override
  public void shutdown() {
    if (planning != null) {
      planning.stop();
    }
    if (link != null) {
      link.stop();
    }
    if (executors != null) {
      executors.stop();
    }
  }

  /** Who is to know what happens: the planner of the policy file, the picture for the service. */
  private List<Follower> followers(SparkConf conf) throws PolicyException {
    List<Follower> followers = new ArrayList<>();
    String file = conf.get(POLICY, "");
    boolean hasService = !conf.get(LinkSettings.SERVICE, "").isEmpty();
    if (file.isEmpty() && !hasService) {
      throw new PolicyException(
          POLICY + " is not set, nor is " + LinkSettings.SERVICE + "; set one to a file that"
              + " `parcae export` wrote, or the other to the HOST:PORT of a `parcae serve`");
    }
    if (hasService) {
      service = new LinkSettings(conf);
      picture = new Picture(() -> {
        Link current = link;
        if (current != null) {
          current.ring();
        }
      });
      followers.add(picture);
    }
    if (!file.isEmpty()) {
      policy = Policy.read(Path.of(file));
      planning = new Planning(this, new Planner(policy, Guest::nowMs), trace);
      followers.add(planning);
    }
    return followers;
  }

  private void callService(String applicationId) throws PolicyException {
    executors = new ExecutorShare(this, context);
    context.listenerBus().addToQueue(executors.listener(), QUEUE);
    link = new Link(service, applicationId, context.appName(), picture, new Taker());
    link.start();
  }

  /** What becomes of the service's orders. */
  private final class Taker implements Link.Taker {
    private boolean hasLimits;

    @Override
    public void take(Wire.Orders orders) {
      boolean hadLimits = hasLimits;
      hasLimits = orders.order.hasLimits();
      mayLimit |= hasLimits;
      if (hadLimits) {
        offerAgain();
      }
      executors.granted(orders.executors);
      trace.write(orders.order, key -> null);
    }

    @Override
    public void expired(long silentMs, String why) {
      String who = planning == null ? "Spark schedules by itself" : "the policy file plans";
      LOG.warn("parcae: no orders for {} ms, {} ({})", silentMs, who, why);
      offerAgain();
      executors.left();
    }

    @Override
    public void back(String from, long silentMs) {
      LOG.info("parcae: orders come from {}, after {} ms", from, silentMs);
    }
  }

  /** Whether nothing has failed so far. */
  boolean isWorking() {
    return isWorking;
  }

  /** The order in force: the service's as long as it is fresh, else that of the policy file. */
  Order order() {
    if (!isWorking) {
      return Order.NONE;
    }
    Link current = link;
    return current != null && current.isFresh() ? current.order() : order;
  }

  /** Whether an order has limited a job so far: from then on task sets keep limits. */
  boolean mayLimit() {
    return isWorking && mayLimit;
  }

  /** Replaces the order of the policy file. */
  void setOrder(Order next) {
    boolean hadLimits = order.hasLimits();
    mayLimit |= next.hasLimits();
    order = next;
    if (hadLimits) {
      offerAgain();
    }
  }

  /** Cores that a limit kept idle are offered when that limit may have gone, not at some event. */
  private void offerAgain() {
    try {
      if (scheduler != null) {
        scheduler.backend().reviveOffers();
      }
    } catch (Throwable error) { // Spark is about to stop
      LOG.debug("parcae: no offers", error);
    }
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
      offerAgain();
      if (link != null) {
        link.leave();
      }
    }
  }

  /** Time that has passed in this process, in ms. */
  private static long nowMs() {
    return System.nanoTime() / 1_000_000;
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
    TaskSchedulerImpl found = (TaskSchedulerImpl) context.taskScheduler();
    Field field = TaskSchedulerImpl.class.getDeclaredField("schedulableBuilder");
    field.setAccessible(true);
    Object stock = field.get(found);
    Pool root = found.rootPool();
    GuestPool pool = new GuestPool(this, root.schedulingMode());
    GuestBuilder builder = new GuestBuilder(this, found, pool, builderLike(stock, pool));
    synchronized (found) {
      for (Object child : root.schedulableQueue().toArray()) { // pools of the allocation file
        root.removeSchedulable((Schedulable) child);
        pool.addSchedulable((Schedulable) child);
      }
      root.addSchedulable(pool);
      for (Schedulable child : pool.schedulableQueue()) {
        GuestBuilder.show(root, child);
      }
      field.set(found, builder);
    }
    scheduler = found;
    LOG.info(
        "parcae: on, {}; the scheduler mode {} decides ties", plannedBy(), root.schedulingMode());
  }

  private String plannedBy() {
    List<String> planners = new ArrayList<>();
    if (service != null) {
      planners.add("by the service " + service.address());
    }
    if (policy != null) {
      planners.add(String.format(
          "%s by %s, which knows %d jobs", policy.name(), policy.file(), policy.numJobs()));
    }
    return String.join("; while it is away ", planners);
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
