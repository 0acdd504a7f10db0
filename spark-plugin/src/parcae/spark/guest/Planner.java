package parcae.spark.guest;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongSupplier;

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
  private int cores = 1;

  /** Hears of every query that has ended well. */
  interface Ended {
    /** The work that was expected when the query arrived, and the true one, in ms of one core. */
    void ended(double expectedMs, double workMs);
  }

  /** Plans by a policy; the clock gives ms and never runs backwards. */
  Planner(Policy policy, LongSupplier clock) {
    this.policy = policy;
    this.clock = clock;
  }

  /** Sets who hears of queries that end. */
  Planner watchedBy(Ended newWatcher) {
    watcher = newWatcher;
    return this;
  }

  @Override
  public void coresChanged(int newCores) {
    cores = Math.max(1, newCores);
  }

  @Override
  public synchronized void jobStarted(StartedJob job) {
    super.jobStarted(job);
    queries().get(job.query).label().asks(job.priority());
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
    double bytes = bytesOf(job.query);
    Query query = estimated(names, learnable, bytes);
    query.reads(bytes, 1);
    reads(query, bytes);
    arrivals.add(query);
    latest.add(query);
    if (latest.size() > Guard.LATEST + 1) {
      latest.remove(0);
    }
    return query;
  }

  /**
   * Creates a query with the best estimate: of the policy file under any of its names, else of
   * earlier runs, else of the bytes that it reads, else none but the duration of a typical task.
   */
  private Query estimated(Set<String> names, Set<String> learnable, double bytes) {
    for (String name : names) {
      Profile profile = policy.find(name);
      if (profile != null) {
        return query(learnable, profile, name, Trace.Label.Source.POLICY);
      }
    }
    for (String name : learnable) {
      Profile profile = learned.find(name, bytes);
      if (profile != null) {
        return query(learnable, profile, name, Trace.Label.Source.LEARNED);
      }
    }
    Trace.Label.Source source =
        bytes > 0 ? Trace.Label.Source.BYTES : Trace.Label.Source.UNKNOWN;
    return query(learnable, null, names.iterator().next(), source);
  }

  private Query query(
      Set<String> learnable, Profile profile, String name, Trace.Label.Source source) {
    return new Query(new ArrayList<>(learnable), profile, policy.guessMs(), clockMs())
        .labelled(new Trace.Label(name, source));
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
  }

  @Override
  void ended(Query query) {
    query.ended();
    Profile stages = query.run();
    if (stages != null) {
      Learned.Run run = new Learned.Run(System.currentTimeMillis(), query.bytes(), stages.workMs);
      query.names().forEach(name -> learned.observe(name, stages, run));
      watcher.ended(query.expectedMs, stages.workMs);
    }
  }

  /** The present, in ms; it never runs backwards. */
  long clockMs() {
    return clock.getAsLong();
  }

  /** The name of an open query and the source of its estimate; null if there is no such query. */
  Trace.Label labelOf(String key) {
    Query query = queries().get(key);
    return query == null ? null : query.label();
  }

  /** How many queries are open. */
  int numOpen() {
    return queries().size();
  }

  /** The open queries, in order of arrival. */
  List<QueryView> openQueries() {
    List<QueryView> views = new ArrayList<>();
    queries().forEach((key, query) -> views.add(new QueryView(key, query, clockMs())));
    return views;
  }

  /** Computes the order that applies from now on. */
  Order plan() {
    long nowMs = clockMs();
    long wakeMs = Order.NOT_YET;
    Rule rule = policy.rule();
    Guard guard = policy.guard();
    if (rule != null || guard != null) {
      fairRun.advance(queries().values(), arrivals, nowMs, cores);
      fairRun.estimateEnds();
    }
    arrivals.clear();
    if (rule != null) {
      List<Query> newest = latest.subList(Math.max(0, latest.size() - Rule.LATEST), latest.size());
      wakeMs = rule.plan(queries().values(), newest, nowMs, cores);
    } else {
      for (Query query : queries().values()) {
        query.tier = Estimates.remainingMs(query);
        query.limit = Order.UNLIMITED;
      }
    }
    if (guard != null) {
      wakeMs = guard.apply(queries().values(), latest, nowMs, cores, wakeMs);
    }
    return buildOrder(wakeMs, rule == null ? policy.meanWorkMs() : rule.otherTier());
  }

  /** The order as the queries and their stages hold it. */
  private Order buildOrder(long wakeMs, double otherTier) {
    Order.Builder order = new Order.Builder().wakeMs(wakeMs);
    queries().forEach((key, query) -> {
      order.job(key, query.tier, 0, query.limit);
      for (StageRow row : query.rows()) {
        if (row.isPending() && row.rank != 0) {
          order.stage(row.stageId, 0, row.rank, Order.UNLIMITED);
        }
      }
    });
    return order.build(otherTier);
  }
}
