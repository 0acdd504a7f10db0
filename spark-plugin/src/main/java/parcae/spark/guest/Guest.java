package parcae.spark.guest;

import com.codahale.metrics.Counter;
import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.scheduler.FIFOSchedulableBuilder;
import org.apache.spark.scheduler.FairSchedulableBuilder;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.SchedulableBuilder;
import org.apache.spark.scheduler.SchedulingMode;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver's side of the plugin, which changes the order of tasks inside Spark's own scheduler.
 *
 * <p>A pool of the plugin, below Spark's root pool, holds all task sets. The pool takes them in
 * Spark's order and re-sorts them by the order in force. Separate threads replace that order, so no
 * thread of Spark waits for the plugin. No exception of the plugin reaches Spark: after the first
 * error the plugin is off and the pool keeps Spark's order until the application ends.
 */
public final class Guest implements DriverPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(Guest.class);
  private static final String QUEUE = "parcae";
  private static final String PLUGINS = "spark.plugins";
  private static final String POLICY = "spark.parcae.policy";
  private static final String TRACE = "spark.parcae.trace";
  private static final String JOB_KEY = "spark.parcae.jobKey";
  private static final String POOLS = "spark.parcae.pools";
  private static final String KEEP = "keep";
  private static final String REPLACE = "replace";
  private static final String DEFAULT_POOL = "default";

  private final String pluginName;
  private SparkContext context;
  private Policy policy;
  private Planning planning;
  private State state; // null without planning
  private Trace trace;
  private LinkSettings service;
  private Picture picture;
  private volatile ExecutorShare executors;
  private volatile Link link;
  private volatile TaskSchedulerImpl scheduler; // null until the pool is in it
  private volatile boolean isWorking = true; // false for good after the first error
  private volatile String failure = "";
  private volatile Order order = Order.NONE;
  private volatile boolean mayLimit;
  private final Metrics metrics = new Metrics();
  private Control control;
  private volatile Control.Mode mode = Control.Mode.ON;
  private Priority priority;
  private volatile Experiment.Running experiment; // null while there is none
  private volatile boolean isStockBlock; // in the experiment's present block Spark's order applies
  private volatile boolean hasWrongPriority; // the log says so once
  private final Persons persons = new Persons();
  private final Weights weights = new Weights();
  private final Admission admission = new Admission(this::offerAgain, persons);

  /** Takes the name of the plugin in `spark.plugins`. */
  public Guest(String pluginName) {
    this.pluginName = pluginName;
  }

  /** An action that may throw. */
  interface Action {
    void run() throws Exception;
  }

  @Override
  public Map<String, String> init(SparkContext sparkContext, PluginContext pluginContext) {
    attempt("the start", () -> {
      context = sparkContext;
      metrics.register(pluginContext.metricRegistry(), this);
      SparkConf conf = sparkContext.conf();
      hideFromExecutors(conf);
      int taskCores = Math.max(1, conf.getInt("spark.task.cpus", 1));
      priority = new Priority(conf);
      trace = new Trace(conf.get(TRACE, ""));
      control = new Control(conf, sparkContext.hadoopConfiguration(), weights);
      List<Follower> followers = followers(conf);
      GuestListener listener =
          new GuestListener(this, context, followers, conf.get(JOB_KEY, ""), taskCores);
      sparkContext.listenerBus().addToQueue(listener, QUEUE);
      if (planning != null) {
        planning.start();
        state.start();
      }
      control.limiting(this::setMaxOpen).start(this::take);
    });
    return Collections.emptyMap();
  }

  @Override
  public void registerMetrics(String applicationId, PluginContext pluginContext) {
    attempt("taking a place in Spark's scheduler", this::installPool);
    showTab();
    if (service != null) {
      attempt("calling the service", () -> startLink(applicationId));
    }
  }

  /** Adds the tab to Spark's user interface; without one, orders apply all the same. */
  private void showTab() {
    try {
      if (context != null && context.ui().isDefined()) {
        Tab.attach(context.ui().get(), context.conf(), this);
      }
    } catch (Throwable error) {
      LOG.warn("parcae: Spark's user interface has no tab: {}", Reason.of("adding it", error));
    }
  }

  @Override
  public void shutdown() {
    if (control != null) {
      control.stop();
    }
    if (experiment != null) {
      experiment.end();
    }
    if (planning != null) {
      planning.stop();
      state.stop();
    }
    admission.stop();
    if (link != null) {
      link.stop();
    }
    if (executors != null) {
      executors.stop();
    }
  }

  /** Creates the followers of events: the planner, and the picture for a service. */
  private List<Follower> followers(SparkConf conf) throws PolicyException {
    List<Follower> followers = new ArrayList<>();
    String file = conf.get(POLICY, "");
    boolean hasService = !conf.get(LinkSettings.SERVICE, "").isEmpty();
    if (hasService) {
      service = new LinkSettings(conf);
      picture = new Picture(() -> {
        Link current = link;
        if (current != null) {
          current.wakeUp();
        }
      });
      followers.add(picture);
    }
    if (!file.isEmpty() || !hasService) {
      policy = file.isEmpty() ? Policy.plain() : Policy.read(Path.of(file));
      Planner planner = new Planner(policy, Guest::nowMs, System::currentTimeMillis, weights)
          .watchedBy(metrics::ended);
      planning = new Planning(this, planner, trace, metrics);
      state = new State(conf, context.hadoopConfiguration(), planner.learned());
      followers.add(planning);
    }
    return followers;
  }

  private void startLink(String applicationId) throws PolicyException {
    executors = new ExecutorShare(
        this, context.conf(), context.schedulerBackend(), this::requestExecutors);
    context.listenerBus().addToQueue(executors.listener(), QUEUE);
    executors.addPresent();
    link = new Link(service, applicationId, context.appName(), picture, new ServiceOrders());
    link.start();
  }

  private boolean requestExecutors(int number) {
    return context.requestTotalExecutors(
        number, 0, scala.collection.immutable.Map$.MODULE$.empty());
  }

  /** Handles the service's orders. */
  private final class ServiceOrders implements OrderHandler {
    private boolean hasLimits;
    /** Whether the last that the log shows at the level of warnings is that orders are missing. */
    private volatile boolean isWarned;

    @Override
    public void take(Wire.Orders orders) {
      boolean hadLimits = hasLimits;
      hasLimits = orders.order.hasLimits();
      mayLimit |= hasLimits || orders.executors >= 0;
      if (hadLimits) {
        offerAgain();
      }
      if (mode == Control.Mode.ON) {
        executors.granted(orders.executors);
      }
      if (isShown()) {
        trace.write(orders.order, key -> null);
      }
    }

    @Override
    public void expired(long silentMs, String why) {
      String who = planning == null ? "Spark schedules by itself" : "the policy file plans";
      LOG.warn("parcae: no orders for {} ms, {} ({})", silentMs, who, why);
      isWarned = true;
      offerAgain();
      executors.left();
      if (planning != null) {
        planning.dueNow();
      } else {
        trace.write(Order.NONE, key -> null);
      }
    }

    @Override
    public void back(String from, long silentMs) {
      String back = "parcae: orders come from {}, after {} ms";
      if (isWarned) {
        LOG.warn(back, from, silentMs);
      } else {
        LOG.info(back, from, silentMs);
      }
      isWarned = false;
    }
  }

  /** Whether the plugin is on: nothing has failed so far. */
  boolean isWorking() {
    return isWorking;
  }

  /** Takes another mode or experiment; an experiment runs while the mode is on. */
  private void take(Control.Mode next, Experiment wanted, String source) {
    if (experiment != null) {
      experiment.end();
      experiment = null;
    }
    setMode(next, source);
    if (next == Control.Mode.ON && wanted != null) {
      LOG.warn("parcae: an experiment by {}: {}", source, wanted);
      experiment = wanted.new Running(
          this::isWorking, this::applyInBlock, context.listenerBus()::post);
    }
  }

  private void applyInBlock(boolean isPolicy) {
    if (isStockBlock == isPolicy) {
      isStockBlock = !isPolicy;
      if (planning != null) {
        planning.dueNow();
      }
      offerAgain();
    }
  }

  /** Takes another mode, which holds from Spark's next offer round on. */
  private void setMode(Control.Mode next, String source) {
    Control.Mode before = mode;
    mode = next;
    if (next != before) {
      LOG.warn("parcae: the mode is {} by {}", next.name().toLowerCase(Locale.ROOT), source);
      if (next != Control.Mode.ON && executors != null) {
        executors.left();
      }
      if (planning != null) {
        planning.dueNow();
      }
      offerAgain();
    }
  }

  /** Takes another limit of how many queries may be open at once. */
  private void setMaxOpen(Admission.Limits limits) {
    admission.limit(limits);
    LOG.warn("parcae: queries that may be open at once: {}", limits);
    offerAgain();
  }

  /** Whether queries are held back while as many as are allowed are open. */
  boolean mayHold() {
    return isWorking && isInForce() && admission.isLimited();
  }

  /** How many queries are held back. */
  int numHeld() {
    return mayHold() ? admission.numHeld() : 0;
  }

  /** Why a query is held back; empty if it is not. */
  String heldReason(String key) {
    return mayHold() ? admission.reason(key) : "";
  }

  /** What holds queries back. */
  Admission admission() {
    return admission;
  }

  /** What the metric `mode` shows. */
  int modeNumber() {
    return isWorking ? mode.ordinal() : Metrics.FAILED;
  }

  /** The mode as a person reads it, with the reason if the plugin has failed. */
  String modeText() {
    return isWorking
        ? mode.name().toLowerCase(Locale.ROOT)
        : "off, Spark schedules by itself: " + failure;
  }

  /** The open queries; none if the service alone plans. */
  List<QueryView> openQueries() {
    return planning == null ? List.of() : planning.openQueries();
  }

  /** How many events Spark has dropped because the plugin's queue of events was full. */
  long numDroppedEvents() {
    Counter counter = context.listenerBus().metrics().metricRegistry().getCounters()
        .get("queue." + QUEUE + ".numDroppedEvents");
    return counter == null ? 0 : counter.getCount();
  }

  /** Counts events that Spark dropped and the plugin made up for; the log says so once. */
  void repaired(int events) {
    if (metrics.repaired(events) == 0) {
      LOG.warn(
          "parcae: Spark drops events, and the plugin takes from stages and jobs what they would"
              + " have said; a larger {} loses none",
          "spark.scheduler.listenerbus.eventqueue." + QUEUE + ".capacity");
    }
  }

  /** Whether the trace shows orders, in force or not. */
  boolean isShown() {
    return mode != Control.Mode.OFF;
  }

  private boolean isInForce() {
    return mode == Control.Mode.ON && !isStockBlock;
  }

  /** The order in force; none unless the mode is on, and in the stock blocks of an experiment. */
  Order order() {
    return isInForce() ? plannedOrder() : Order.NONE;
  }

  /** The service's order while it is recent enough, else that of the policy file. */
  Order plannedOrder() {
    if (!isWorking) {
      return Order.NONE;
    }
    Link current = link;
    return current != null && current.isFresh() ? current.order() : order;
  }

  /** Who runs the jobs. */
  Persons persons() {
    return persons;
  }

  /** Whether Spark's scheduler has the task; it does until the task has given its core back. */
  boolean isRunning(long task) {
    TaskSchedulerImpl current = scheduler;
    return current == null || current.taskIdToTaskSetManager().containsKey(task);
  }

  /** Whether an executor is to go, so that no task may start there. */
  boolean isDraining(String executor) {
    ExecutorShare share = executors;
    return isWorking && share != null && share.isDraining(executor);
  }

  /**
   * Whether an order had a limit, or executors were shared out. From then on new task sets check
   * whether they may start a task.
   */
  boolean mayLimit() {
    return isWorking && mayLimit;
  }

  /** The priority that a job with these properties gets. */
  int granted(Properties properties) {
    return priority == null ? 0 : priority.granted(properties, persons); // null in tests
  }

  /** The priorities that jobs get. */
  Priority priority() {
    return priority;
  }

  /** Says once in the log that a job's priority cannot be read. */
  void checkPriority(Properties properties) {
    if (!hasWrongPriority && Priority.isWrong(properties)) {
      hasWrongPriority = true;
      LOG.warn(
          "parcae: {} is {}, not a whole number: such jobs have the priority 0",
          Priority.PROPERTY, properties.getProperty(Priority.PROPERTY));
    }
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

  /**
   * Makes Spark offer idle cores now. A limit may have kept them idle, and when it is lifted no
   * event of Spark starts an offer round.
   */
  void offerAgain() {
    try {
      if (scheduler != null) {
        scheduler.backend().reviveOffers();
      }
    } catch (Throwable error) { // Spark is about to stop
      LOG.debug("parcae: no offers", error);
    }
  }

  /** Runs an action unless the plugin is off; an exception turns the plugin off. */
  void attempt(String what, Action action) {
    if (isWorking) {
      insist(what, action);
    }
  }

  /** Runs an action even if the plugin is off; an exception turns the plugin off. */
  void insist(String what, Action action) {
    try {
      action.run();
    } catch (Throwable error) {
      fail(what, error);
    }
  }

  /** Turns the plugin off for good and logs the reason in one line. */
  synchronized void fail(String what, Throwable error) {
    if (isWorking) {
      failure = Reason.of(what, error);
      isWorking = false;
      LOG.error("parcae: off, Spark schedules by itself: {}", failure);
      LOG.debug("parcae: off", error);
      offerAgain();
      if (link != null) {
        link.leave();
      }
    }
  }

  /** A clock in ms that never runs backwards; only differences mean something. */
  private static long nowMs() {
    return System.nanoTime() / 1_000_000;
  }

  /** Removes the plugin from the settings that executors get: they do not have the jar. */
  private void hideFromExecutors(SparkConf conf) {
    List<String> otherPlugins = new ArrayList<>();
    for (String name : conf.get(PLUGINS, "").split(",")) {
      if (!name.trim().isEmpty() && !name.trim().equals(pluginName)) {
        otherPlugins.add(name.trim());
      }
    }
    if (otherPlugins.isEmpty()) {
      conf.remove(PLUGINS);
    } else {
      conf.set(PLUGINS, String.join(",", otherPlugins));
    }
  }

  /**
   * Puts the plugin's pool and builder into Spark's scheduler.
   *
   * <p>Everything that another version of Spark may lack is looked up before anything is changed,
   * so that a failure leaves Spark's scheduler as it was.
   */
  private void installPool() throws ReflectiveOperationException, PolicyException {
    TaskSchedulerImpl target = (TaskSchedulerImpl) context.taskScheduler();
    Field field = TaskSchedulerImpl.class.getDeclaredField("schedulableBuilder");
    field.setAccessible(true);
    Object sparkBuilder = field.get(target);
    Pool root = target.rootPool();
    Set<String> defined = new HashSet<>();
    for (Schedulable child : root.schedulableQueue()) {
      defined.add(child.name());
    }
    defined.remove(DEFAULT_POOL); // which Spark always adds
    boolean isFair = root.schedulingMode() == SchedulingMode.FAIR();
    boolean keepsPools = keepsPools(context.conf().get(POOLS, ""), isFair, !defined.isEmpty());
    persons.usePools(defined, keepsPools);
    persons.ownedBy(context.conf().get(Persons.PROPERTY, ""));
    GuestPool pool = new GuestPool(this, root.schedulingMode(), keepsPools);
    GuestBuilder builder = new GuestBuilder(this, target, pool, builderLike(sparkBuilder, pool));
    synchronized (target) {
      for (Object child : root.schedulableQueue().toArray()) { // pools of the allocation file
        root.removeSchedulable((Schedulable) child);
        pool.addSchedulable((Schedulable) child);
      }
      root.addSchedulable(pool);
      for (Schedulable child : pool.schedulableQueue()) {
        GuestBuilder.show(root, child);
      }
      field.set(target, builder);
    }
    scheduler = target;
    LOG.warn( // at this level, so that it is found among thousands of lines
        "parcae: {}, {}; {}the scheduler mode {} decides ties",
        mode.name().toLowerCase(Locale.ROOT),
        plannedBy(),
        keepsPools ? "pools keep their weights and minimum shares; " : "",
        root.schedulingMode());
  }

  /**
   * Whether Spark's pools keep their weights and minimum shares, and the order applies inside them.
   * Without a setting they do if the allocation file defines a pool.
   *
   * @throws PolicyException the setting has another value, or there are no pools to keep
   */
  private static boolean keepsPools(String setting, boolean isFair, boolean hasDefined)
      throws PolicyException {
    if (!setting.isEmpty() && !setting.equals(KEEP) && !setting.equals(REPLACE)) {
      throw new PolicyException(
          POOLS + " is " + setting + "; set it to " + KEEP + " or " + REPLACE
              + ", or leave it out");
    }
    if (setting.equals(KEEP) && !isFair) {
      throw new PolicyException(
          POOLS + " is " + KEEP + ", but spark.scheduler.mode is not FAIR: Spark has no pools");
    }
    return setting.isEmpty() ? isFair && hasDefined : setting.equals(KEEP);
  }

  /** The planners in order of precedence, for the log line. */
  String plannedBy() {
    List<String> planners = new ArrayList<>();
    if (service != null) {
      planners.add("by the service " + service.address());
    }
    if (policy != null) {
      planners.add(policy.toString());
    }
    return String.join("; while it is away ", planners);
  }

  /** A builder of the same kind as Spark's, which fills the plugin's pool. */
  private SchedulableBuilder builderLike(Object sparkBuilder, Pool pool) {
    if (sparkBuilder instanceof FairSchedulableBuilder) {
      return new FairSchedulableBuilder(pool, context);
    }
    if (sparkBuilder instanceof FIFOSchedulableBuilder) {
      return new FIFOSchedulableBuilder(pool);
    }
    throw new UnsupportedOperationException(
        "Spark's builder of pools is " + sparkBuilder + ", not FIFO or FAIR");
  }
}
