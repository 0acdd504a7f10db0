package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongPredicate;
import java.util.function.LongSupplier;
import java.util.function.ToDoubleFunction;

/**
 * Keeps track of the open queries and computes orders for them by a policy.
 *
 * <p>It uses no types of Spark and does no input or output. Only one thread may use it at a time.
 */
final class Planner extends Following<Query> {
  private final Policy policy;
  private final LongSupplier clock;
  private Ended watcher = (expectedMs, workMs) -> { };
  private final Learned learned = new Learned();
  private final List<Query> arrivals = new ArrayList<>(); // since the last plan
  /** The queries that arrived last, including ended ones. */
  private final ArrayList<Query> latest = new ArrayList<>();
  private final FairRun fairRun = new FairRun();
  private final Ledgers ledgers; // null: users do not count
  private int cores = 1;
  private double otherWorkMs; // of a query that is not in the order; of a formula: its value

  /** Hears of every query that has ended well. */
  interface Ended {
    /** The work that was expected when the query arrived, and the true one, in ms of one core. */
    void ended(double expectedMs, double workMs);
  }

  /**
   * Creates a planner of no query.
   *
   * @param policy how to plan
   * @param clock the clock in ms; it never runs backwards
   * @param wall the clock of the tasks' launch times, in ms
   * @param weightOf the weight of a user
   */
  Planner(
      Policy policy, LongSupplier clock, LongSupplier wall, ToDoubleFunction<String> weightOf) {
    this.policy = policy;
    this.clock = clock;
    Ledgers.Terms terms = policy.account();
    ledgers = terms == null ? null : new Ledgers(terms, wall, weightOf);
  }

  /** Sets who hears of queries that end. */
  Planner watchedBy(Ended newWatcher) {
    watcher = newWatcher;
    return this;
  }

  @Override
  public void coresChanged(int newCores) {
    changes();
    cores = Math.max(1, newCores);
  }

  @Override
  public synchronized void jobStarted(StartedJob job) {
    super.jobStarted(job);
    queries().get(job.query).label().asks(job.asked(), job.priority());
  }

  @Override
  void changes() {
    if (ledgers != null) {
      ledgers.advance(clockMs(), cores);
    }
  }

  @Override
  void changed(Query query) {
    query.isChanged = true;
    if (ledgers != null) {
      ledgers.changed(query);
    }
  }

  @Override
  public void taskHeld(long task, int stage, double taskCores, long launchMs) {
    Query query = queryOfStage(stage);
    if (ledgers != null && query != null) {
      changes();
      ledgers.held(task, query, taskCores, launchMs);
    }
  }

  @Override
  public void taskReleased(long task, int stage, double taskCores, long launchMs, long endMs) {
    if (ledgers != null) {
      changes();
      ledgers.released(task, queryOfStage(stage), taskCores, launchMs, endMs);
    }
  }

  /** Takes a task that does not run as ended, although no event said so. */
  void keepTasks(LongPredicate isRunning) {
    if (ledgers != null) {
      changes();
      ledgers.keep(isRunning);
    }
  }

  @Override
  Query opened(StartedJob job, Set<String> planNames) {
    // A query outside SQL has only its plain name. In SQL the plan is the better key, and unlike
    // queries often share a plain name, such as a call site.
    Set<String> learnable = new LinkedHashSet<>(job.givenNames);
    learnable.addAll(planNames);
    if (job.execution == null) {
      learnable.add(job.plainName);
    }
    Set<String> names = new LinkedHashSet<>(learnable);
    names.add(job.plainName);
    String user = userOf(job, planNames);
    double bytes = bytesOf(job.query);
    Query query = estimated(names, learnable, bytes, user);
    query.reads(bytes, 1);
    reads(query, bytes);
    arrivals.add(query);
    latest.add(query);
    if (latest.size() > Rule.LATEST) {
      latest.remove(0);
    }
    if (ledgers != null) {
      ledgers.opened(query, user, job.pool());
    }
    return query;
  }

  /** The user; where none is known, the name of what recurs. */
  private static String userOf(StartedJob job, Collection<String> planNames) {
    if (!job.user().isEmpty()) {
      return job.user();
    }
    String given = job.givenNames.isEmpty() ? "" : job.givenNames.get(0);
    return given.isEmpty() && !planNames.isEmpty()
        ? shapeOf(planNames)
        : Persons.recurring(given.isEmpty() ? job.plainName : given);
  }

  /** The last of a plan's names, which has no literals. */
  private static String shapeOf(Collection<String> planNames) {
    return new ArrayList<>(planNames).get(planNames.size() - 1);
  }

  /**
   * Creates a query with the best estimate: of the policy file under any of its names, else of
   * earlier runs, else of the bytes that it reads, else none but the duration of a typical task.
   */
  private Query estimated(
      Set<String> names, Set<String> learnable, double bytes, String user) {
    for (String name : names) {
      Profile profile = policy.find(name);
      if (profile != null) {
        Trace.Label label = new Trace.Label(name, Trace.Label.Source.POLICY, user);
        return query(learnable, profile.at(bytes), label);
      }
    }
    for (String name : learnable) {
      Profile profile = learned.find(name, bytes);
      if (profile != null) {
        return query(learnable, profile, new Trace.Label(name, Trace.Label.Source.LEARNED, user));
      }
    }
    Trace.Label.Source source =
        bytes > 0 ? Trace.Label.Source.BYTES : Trace.Label.Source.UNKNOWN;
    return query(learnable, null, new Trace.Label(names.iterator().next(), source, user));
  }

  private Query query(Set<String> learnable, Profile profile, Trace.Label label) {
    return new Query(new ArrayList<>(learnable), profile, policy.guessMs(), clockMs())
        .labelled(label);
  }

  @Override
  void extended(Query query, List<Integer> stages) { // `Query.listed` has added them
    if (query.expectedMs == Query.NOT_YET) {
      query.expectedMs = Estimates.remainingMs(query);
    }
  }

  @Override
  void served(Query query) {
    query.servedMs = clockMs();
  }

  @Override
  void reads(Query query, double bytes) {
    query.reads(bytes, Learned.ratio(bytes, query.bytes()));
    query.priorMs = query.hasProfile() || bytes <= 0 ? 0 : learned.priorMs(bytes);
    query.isChanged = true;
  }

  @Override
  void ended(Query query) {
    query.ended();
    if (ledgers != null) {
      ledgers.ended(query);
    }
    Profile stages = query.run();
    if (stages != null) {
      Learned.Run run = new Learned.Run(System.currentTimeMillis(), query.bytes(), stages.workMs);
      query.names().forEach(name -> learned.observe(name, stages, run));
      watcher.ended(query.expectedMs, stages.workMs);
    }
  }

  /** What was learned of queries that ended. */
  Learned learned() {
    return learned;
  }

  /** The present, in ms; it never runs backwards. */
  long clockMs() {
    return clock.getAsLong();
  }

  /** An open query's name, source of the estimate and user; null if there is no such query. */
  Trace.Label labelOf(String key) {
    Query query = queries().get(key);
    return query == null ? null : query.label();
  }

  /** The users' accounts; null if they do not count. */
  Ledgers ledgers() {
    return ledgers;
  }

  /** How many queries are open. */
  int numOpen() {
    return queries().size();
  }

  /** The open queries, in order of arrival. */
  List<QueryView> openQueries() {
    changes(); // brings the accounts up to the present
    List<QueryView> views = new ArrayList<>();
    queries().forEach((key, query) -> views.add(new QueryView(key, query, clockMs())));
    return views;
  }

  /** Computes the order that applies from now on. */
  Order plan() {
    long nowMs = clockMs();
    long wakeMs = Order.NOT_YET;
    Rule rule = policy.rule();
    Formula formula = policy.formula();
    if (rule != null || formula != null) {
      fairRun.advance(queries().values(), arrivals, nowMs, cores);
      fairRun.estimateEnds();
    }
    arrivals.clear();
    if (rule != null) {
      wakeMs = rule.plan(queries().values(), latest, nowMs, cores);
    } else if (formula != null) {
      changes();
      wakeMs = formula.plan(queries().values(), nowMs, cores, policy.guessMs());
    } else {
      for (Query query : queries().values()) {
        if (query.isChanged) {
          query.isChanged = false;
          query.remainingMs = Estimates.remainingMs(query);
        }
        query.tier = query.remainingMs;
        query.limit = Order.UNLIMITED;
      }
    }
    if (ledgers != null) {
      ledgers.advance(nowMs, cores);
      Ledgers.Work work = tier -> rule == null ? tier : rule.workMs(tier);
      wakeMs = ledgers.apply(queries().values(), work, wakeMs);
    }
    otherWorkMs = formula == null ? policy.meanWorkMs() : formula.otherTier(policy.meanWorkMs());
    return buildOrder(wakeMs, rule == null ? otherWorkMs : rule.otherTier());
  }

  /** The order as the queries and their stages hold it. */
  private Order buildOrder(long wakeMs, double otherTier) {
    Order.Builder order = new Order.Builder().wakeMs(wakeMs);
    queries().forEach((key, query) -> {
      order.job(key, query.tier, 0, query.limit);
      if (policy.rule() != null || policy.formula() != null) { // else stages have no ranks
        for (StageRow row : query.rows()) {
          if (row.isPending() && row.rank != 0) {
            order.stage(row.stageId, 0, row.rank, Order.UNLIMITED);
          }
        }
      }
    });
    if (ledgers != null) {
      ledgers.addOthers(order, otherWorkMs);
      announced().forEach((execution, planNames) -> {
        if (!planNames.isEmpty()) {
          order.announced(execution, shapeOf(planNames));
        }
      });
    }
    return order.build(otherTier);
  }
}
