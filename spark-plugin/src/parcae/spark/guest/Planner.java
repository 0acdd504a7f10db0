package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Follows the open queries and makes the order by least remaining work. No types of Spark's, no
 * input or output; one thread at a time.
 */
final class Planner implements Follower {
  private final Policy policy;
  private final LongSupplier clock;
  private final Learned learned = new Learned();
  private final Map<String, List<String>> executions = new HashMap<>(); // open ones: names by plan
  private final Map<String, OpenQuery> queries = new HashMap<>();
  private final Map<Integer, String> queryOfJob = new HashMap<>();
  private final Map<Integer, List<Integer>> stagesOfJob = new HashMap<>();
  private final Map<Integer, OpenQuery> queryOfStage = new HashMap<>();

  /** Plans by a policy; the clock gives ms and never runs backwards. */
  Planner(Policy policy, LongSupplier clock) {
    this.policy = policy;
    this.clock = clock;
  }

  /** The order by remaining work is the same on any number of cores. */
  @Override
  public void coresChanged(int cores) {}

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
    OpenQuery query = queries.computeIfAbsent(job.query, key -> open(job));
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

  private OpenQuery open(StartedJob job) {
    Set<String> learnable = new LinkedHashSet<>(job.givenNames);
    learnable.addAll(executions.getOrDefault(job.query, List.of()));
    if (job.execution != null) {
      learnable.addAll(executions.getOrDefault(job.execution, List.of()));
    } else {
      learnable.add(job.plainName);
    }
    Set<String> names = new LinkedHashSet<>(learnable);
    names.add(job.plainName);
    for (String name : names) {
      Profile profile = policy.find(name);
      if (profile != null) {
        return new OpenQuery(List.of(), profile, policy.guessMs());
      }
    }
    for (String name : learnable) {
      Profile profile = learned.find(name);
      if (profile != null) {
        return new OpenQuery(new ArrayList<>(learnable), profile, policy.guessMs());
      }
    }
    return new OpenQuery(new ArrayList<>(learnable), null, policy.guessMs());
  }

  @Override
  public void jobEnded(int job, boolean isSuccess) {
    OpenQuery query = queries.get(queryOfJob.get(job));
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
    OpenQuery query = queries.remove(key);
    if (query == null) {
      return;
    }
    for (int job : query.jobs()) {
      queryOfJob.remove(job);
      stagesOfJob.remove(job);
    }
    new HashSet<>(query.stageIds()).forEach(queryOfStage::remove);
    Profile run = query.run();
    if (run != null) {
      query.names().forEach(name -> learned.observe(name, run));
    }
  }

  @Override
  public void stageSubmitted(int stage, int attempt, int tasks) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.submitted(stage, attempt, tasks);
    }
  }

  @Override
  public void stageCompleted(int stage) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.closed(stage);
    }
  }

  @Override
  public void taskStarted(int stage, int attempt) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.taskStarted(stage, attempt);
    }
  }

  @Override
  public void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs) {
    OpenQuery query = queryOfStage.get(stage);
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

  /** The order by least remaining work. */
  Order plan() {
    Order.Builder order = new Order.Builder();
    queries.forEach((key, query) -> order.job(key, query.remainingMs(), 0, Order.UNLIMITED));
    return order.build(policy.meanWorkMs());
  }
}
