package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Follows the open queries and makes the order by least remaining work. No types of Spark's, no
 * input or output; one thread at a time.
 */
final class Planner {
  private final Policy policy;
  private final Learned learned = new Learned();
  private final Map<String, List<String>> executions = new HashMap<>(); // open ones: names by plan
  private final Map<String, OpenQuery> queries = new HashMap<>();
  private final Map<Integer, String> queryOfJob = new HashMap<>();
  private final Map<Integer, List<Integer>> stagesOfJob = new HashMap<>();
  private final Map<Integer, OpenQuery> queryOfStage = new HashMap<>();

  Planner(Policy policy) {
    this.policy = policy;
  }

  /** A stage as a Spark job lists it. */
  static final class ListedStage {
    final int id;
    final int tasks;
    final List<Integer> parents;

    ListedStage(int id, int tasks, List<Integer> parents) {
      this.id = id;
      this.tasks = tasks;
      this.parents = parents;
    }
  }

  /** A Spark job as it starts; `execution` is null outside SQL. */
  static final class StartedJob {
    final int id;
    final String query;
    final String execution;
    final List<String> givenNames;
    final String plainName;
    final List<ListedStage> stages;

    /**
     * What is known of a job.
     *
     * @param query see `Order.queryOf`
     * @param execution its SQL execution, which may be a part of another
     * @param givenNames names that the user set for planning
     * @param plainName job group, description or call site
     */
    StartedJob(
        int id,
        String query,
        String execution,
        List<String> givenNames,
        String plainName,
        List<ListedStage> stages) {
      this.id = id;
      this.query = query;
      this.execution = execution;
      this.givenNames = givenNames;
      this.plainName = plainName;
      this.stages = stages;
    }
  }

  void executionStarted(String execution, String plan) {
    List<String> names = plan == null || plan.isEmpty()
        ? List.of()
        : List.of(Fingerprint.planName(plan), Fingerprint.shapeName(plan));
    executions.put(execution, names);
  }

  void executionEnded(String execution) {
    executions.remove(execution);
    close(execution);
  }

  void jobStarted(StartedJob job) {
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
        return new OpenQuery(List.of(), profile, policy.guessMs())
            .labelled(name, Trace.Label.Source.POLICY);
      }
    }
    for (String name : learnable) {
      Profile profile = learned.find(name);
      if (profile != null) {
        return new OpenQuery(new ArrayList<>(learnable), profile, policy.guessMs())
            .labelled(name, Trace.Label.Source.LEARNED);
      }
    }
    return new OpenQuery(new ArrayList<>(learnable), null, policy.guessMs())
        .labelled(names.iterator().next(), Trace.Label.Source.UNKNOWN);
  }

  void jobEnded(int job, boolean isSuccess) {
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

  void stageSubmitted(int stage, int attempt, int tasks) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.submitted(stage, attempt, tasks);
    }
  }

  void stageCompleted(int stage) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.closed(stage);
    }
  }

  void taskStarted(int stage, int attempt) {
    OpenQuery query = queryOfStage.get(stage);
    if (query != null) {
      query.taskStarted(stage, attempt);
    }
  }

  void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs) {
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

  /** What an open query is called; null if there is no such query. */
  Trace.Label labelOf(String key) {
    OpenQuery query = queries.get(key);
    return query == null ? null : query.label();
  }

  int numOpen() {
    return queries.size();
  }

  /** The order by least remaining work. */
  Order plan() {
    Map<String, Double> tiers = new HashMap<>();
    queries.forEach((key, query) -> tiers.put(key, query.remainingMs()));
    return new Order(tiers, policy.meanWorkMs());
  }
}
