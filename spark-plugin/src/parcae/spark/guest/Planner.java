package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Follows the open queries and makes orders of them by a policy. No types of Spark's, no input or
 * output; one thread at a time.
 */
final class Planner implements Follower {
  private final Policy policy;
  private final LongSupplier clock;
  private final Learned learned = new Learned();
  private final Map<String, List<String>> executions = new HashMap<>(); // open ones: names by plan
  private final Map<String, Query> queries = new LinkedHashMap<>(); // open ones, as they arrived
  private final List<Query> arrivals = new ArrayList<>(); // since the last order
  private final ArrayList<Query> latest = new ArrayList<>(); // ended ones among them
  private final FairRun fairRun = new FairRun();
  private final Map<Integer, String> queryOfJob = new HashMap<>();
  private final Map<Integer, List<Integer>> stagesOfJob = new HashMap<>();
  private final Map<Integer, Query> queryOfStage = new HashMap<>();
  private int cores = 1;

  /** Plans by a policy; the clock gives ms and never runs backwards. */
  Planner(Policy policy, LongSupplier clock) {
    this.policy = policy;
    this.clock = clock;
  }

  @Override
  public void coresChanged(int newCores) {
    cores = Math.max(1, newCores);
  }

  @Override
  public void executionStarted(String execution, String plan) {
    List<String> names = plan == null || plan.isEmpty()
        ? List.of()
        : List.of(Fingerprint.planName(plan), Fingerprint.shapeName(plan));
    executions.put(execution, names);
  }

  @Override
  public void executionEnded(String execution) {
    executions.remove(execution);
    close(execution);
  }

  @Override
  public void jobStarted(StartedJob job) {
    Query query = queries.computeIfAbsent(job.query, key -> open(job));
    query.jobs().add(job.id);
    queryOfJob.put(job.id, job.query);
    List<Integer> ids = new ArrayList<>();
    for (ListedStage stage : job.stages) {
      if (!queryOfStage.containsKey(stage.id)) { // else it is another job's
        query.listed(stage.id, stage.tasks, stage.parents);
        queryOfStage.put(stage.id, query);
        ids.add(stage.id);
      }
    }
    stagesOfJob.put(job.id, ids);
  }

  private Query open(StartedJob job) {
    Set<String> learnable = new LinkedHashSet<>(job.givenNames);
    learnable.addAll(executions.getOrDefault(job.query, List.of()));
    if (job.execution != null) {
      learnable.addAll(executions.getOrDefault(job.execution, List.of()));
    } else {
      learnable.add(job.plainName);
    }
    Set<String> names = new LinkedHashSet<>(learnable);
    names.add(job.plainName);
    Profile profile = foretold(names, learnable);
    Query query =
        new Query(new ArrayList<>(learnable), profile, policy.guessMs(), clockMs());
    arrivals.add(query);
    latest.add(query);
    if (latest.size() > Guard.LATEST + 1) {
      latest.remove(0);
    }
    return query;
  }

  /** By the policy file under any name, else by what ran here; null if nobody knows the query. */
  private Profile foretold(Set<String> names, Set<String> learnable) {
    for (String name : names) {
      Profile profile = policy.find(name);
      if (profile != null) {
        return profile;
      }
    }
    for (String name : learnable) {
      Profile profile = learned.find(name);
      if (profile != null) {
        return profile;
      }
    }
    return null;
  }

  @Override
  public void jobEnded(int job, boolean isSuccess) {
    Query query = queries.get(queryOfJob.get(job));
    String key = queryOfJob.remove(job);
    List<Integer> ids = stagesOfJob.remove(job);
    if (query == null) {
      return;
    }
    ids.forEach(query::closed);
    query.jobs().remove(job);
    if (!isSuccess) {
      query.jobFailed();
    }
    if (query.jobs().isEmpty() && !executions.containsKey(key)) {
      close(key);
    }
  }

  private void close(String key) {
    Query query = queries.remove(key);
    if (query == null) {
      return;
    }
    for (int job : query.jobs()) {
      queryOfJob.remove(job);
      stagesOfJob.remove(job);
    }
    new HashSet<>(query.stageIds()).forEach(queryOfStage::remove);
    query.ended();
    Profile run = query.run();
    if (run != null) {
      query.names().forEach(name -> learned.observe(name, run));
    }
  }

  @Override
  public void stageSubmitted(int stage, int attempt, int tasks) {
    Query query = queryOfStage.get(stage);
    if (query != null) {
      query.submitted(stage, attempt, tasks);
    }
  }

  @Override
  public void stageCompleted(int stage) {
    Query query = queryOfStage.get(stage);
    if (query != null) {
      query.closed(stage);
    }
  }

  @Override
  public void taskStarted(int stage, int attempt) {
    Query query = queryOfStage.get(stage);
    if (query != null) {
      query.taskStarted(stage, attempt);
    }
  }

  @Override
  public void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs) {
    Query query = queryOfStage.get(stage);
    if (query == null) {
      return;
    }
    if (isSuccess) {
      query.taskSucceeded(stage, attempt, tookMs);
    } else {
      query.taskFailed(stage, attempt);
    }
  }

  /** The present, in ms; it never runs backwards. */
  long clockMs() {
    return clock.getAsLong();
  }

  int numOpen() {
    return queries.size();
  }

  /** The order from now on. */
  Order plan() {
    long nowMs = clockMs();
    long wakeMs = Order.NOT_YET;
    Rule rule = policy.rule();
    Guard guard = policy.guard();
    if (rule != null || guard != null) {
      fairRun.carryOn(queries.values(), arrivals, nowMs, cores);
      fairRun.foretellEnds();
    }
    arrivals.clear();
    if (rule != null) {
      List<Query> newest = latest.subList(Math.max(0, latest.size() - Rule.LATEST), latest.size());
      wakeMs = rule.plan(queries.values(), newest, nowMs, cores);
    } else {
      for (Query query : queries.values()) {
        query.tier = Estimates.remainingMs(query);
        query.limit = Order.UNLIMITED;
      }
    }
    if (guard != null) {
      wakeMs = guard.apply(queries.values(), latest, nowMs, cores, wakeMs);
    }
    return written(wakeMs, rule == null ? policy.meanWorkMs() : rule.otherTier());
  }

  private Order written(long wakeMs, double otherTier) {
    Order.Builder order = new Order.Builder().wakeMs(wakeMs);
    queries.forEach((key, query) -> {
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
