package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Keeps track of the open queries and passes the events of Spark's jobs, stages and tasks to the
 * query that they belong to.
 *
 * @param <Q> the class of an open query
 */
abstract class Following<Q extends Following.OpenQuery> implements Follower {
  /** The plan names of every open SQL execution. */
  private final Map<String, List<String>> executions = new HashMap<>();
  /** The bytes that every open SQL execution reads. */
  private final Map<String, Double> bytesOf = new HashMap<>();
  /** The executions that are a part of another one, by which their query is known. */
  private final Map<String, String> partOf = new HashMap<>();
  private final Map<String, Q> queries = new LinkedHashMap<>(); // in order of arrival
  private final Map<Integer, String> queryOfJob = new HashMap<>();
  private final Map<Integer, List<Integer>> stagesOfJob = new HashMap<>();
  private final Map<Integer, Q> queryOfStage = new HashMap<>();

  /** An open query. */
  interface OpenQuery {
    /** Its Spark jobs that have not ended; `Following` adds and removes them. */
    Set<Integer> jobs();

    /** The stages that were listed. */
    Set<Integer> stageIds();

    /** A Spark job lists a stage. Spark may skip the stage later. */
    void listed(int stage, int tasks, List<Integer> parents);

    /** An attempt to run a stage starts. */
    void submitted(int stage, int attempt, int tasks);

    /** A stage is complete or no longer needed. */
    void closed(int stage);

    /** A task of an attempt starts. */
    void taskStarted(int stage, int attempt);

    /** A task has succeeded after `tookMs`. */
    void taskSucceeded(int stage, int attempt, double tookMs);

    /** A task has failed. */
    void taskFailed(int stage, int attempt);

    /** A task that had succeeded must run again. */
    void taskLost(int stage, int attempt);

    /** The query, or one of its Spark jobs, has failed. */
    void failed();
  }

  /** A query's first job starts; `planNames` are its names by plan, the most exact first. */
  abstract Q opened(StartedJob job, Set<String> planNames);

  /** A job of the query has listed its stages. */
  abstract void extended(Q query, List<Integer> stages);

  /** A stage of the query is submitted, or a task of it has started or ended. */
  void served(Q query) {}

  /** A query has ended. */
  abstract void ended(Q query);

  /** An event is about to change queries. */
  void changes() {}

  /** An event has changed a query. */
  void changed(Q query) {}

  /** It is known that an open query reads other bytes than before. */
  void reads(Q query, double bytes) {}

  /** The bytes that a query reads, with all its executions; 0 if they are not known. */
  final double bytesOf(String key) {
    double bytes = bytesOf.getOrDefault(key, 0.0);
    for (Map.Entry<String, String> part : partOf.entrySet()) {
      bytes += part.getValue().equals(key) ? bytesOf.getOrDefault(part.getKey(), 0.0) : 0;
    }
    return bytes;
  }

  @Override
  public synchronized void bytesKnown(String execution, double bytes) {
    bytesOf.put(execution, bytes);
    String key = partOf.getOrDefault(execution, execution);
    Q query = queries.get(key);
    if (query != null) {
      changes();
      reads(query, bytesOf(key));
      changed(query);
    }
  }

  /** Open queries by key (see `Order.queryOf`), in order of arrival; needs this object's lock. */
  final Map<String, Q> queries() {
    return queries;
  }

  /** The names by plan of the SQL executions that are open, whether or not a job has started. */
  final Map<String, List<String>> announced() {
    return executions;
  }

  @Override
  public synchronized void executionStarted(String execution, String plan) {
    List<String> names = plan == null || plan.isEmpty()
        ? List.of()
        : List.of(Fingerprint.planName(plan), Fingerprint.shapeName(plan));
    executions.put(execution, names);
  }

  @Override
  public synchronized void executionEnded(String execution, boolean isSuccess) {
    executions.remove(execution);
    Q query = queries.get(execution);
    if (query != null && !isSuccess) {
      query.failed();
    }
    close(execution);
    if (!partOf.containsKey(execution)) { // its parts are kept until now
      bytesOf.keySet().removeIf(each -> execution.equals(partOf.getOrDefault(each, each)));
      partOf.values().removeIf(execution::equals);
    }
  }

  @Override
  public synchronized void jobStarted(StartedJob job) {
    changes();
    Q query = queries.get(job.query);
    boolean isPart = job.execution != null
        && !job.execution.equals(job.query)
        && partOf.put(job.execution, job.query) == null;
    if (query == null) {
      query = opened(job, planNames(job));
      queries.put(job.query, query);
    } else if (isPart) {
      reads(query, bytesOf(job.query));
    }
    query.jobs().add(job.id);
    queryOfJob.put(job.id, job.query);
    List<Integer> added = new ArrayList<>();
    for (ListedStage stage : job.stages) {
      // A stage that several jobs list belongs to the first of them.
      if (stage.tasks > 0 && !queryOfStage.containsKey(stage.id)) {
        query.listed(stage.id, stage.tasks, stage.parents);
        queryOfStage.put(stage.id, query);
        added.add(stage.id);
      }
    }
    stagesOfJob.put(job.id, added);
    extended(query, added);
    changed(query);
  }

  private Set<String> planNames(StartedJob job) {
    Set<String> names = new LinkedHashSet<>(executions.getOrDefault(job.query, List.of()));
    if (job.execution != null) {
      names.addAll(executions.getOrDefault(job.execution, List.of()));
    }
    return names;
  }

  @Override
  public synchronized void jobEnded(int job, boolean isSuccess) {
    String key = queryOfJob.remove(job);
    List<Integer> stages = stagesOfJob.remove(job);
    Q query = queries.get(key);
    if (query == null) {
      return;
    }
    changes();
    stages.forEach(query::closed);
    query.jobs().remove(job);
    if (!isSuccess) {
      query.failed();
    }
    changed(query);
    // A query of SQL ends with its execution, since another job of it may follow.
    if (query.jobs().isEmpty() && !executions.containsKey(key)) {
      close(key);
    }
  }

  private void close(String key) {
    Q query = queries.remove(key);
    if (query == null) {
      return;
    }
    changes();
    for (int job : query.jobs()) {
      queryOfJob.remove(job);
      stagesOfJob.remove(job);
    }
    new HashSet<>(query.stageIds()).forEach(queryOfStage::remove);
    ended(query);
  }

  /** The query of a stage; null if there is none. */
  final Q queryOfStage(int stage) {
    return queryOfStage.get(stage);
  }

  /** Passes an event of a stage to its query. */
  private void pass(int stage, Consumer<Q> event) {
    Q query = queryOfStage.get(stage);
    if (query != null) {
      changes();
      event.accept(query);
      changed(query);
    }
  }

  @Override
  public synchronized void stageSubmitted(int stage, int attempt, int tasks) {
    pass(stage, query -> {
      query.submitted(stage, attempt, tasks);
      served(query);
    });
  }

  @Override
  public synchronized void stageCompleted(int stage) {
    pass(stage, query -> query.closed(stage));
  }

  @Override
  public synchronized void taskStarted(int stage, int attempt) {
    pass(stage, query -> {
      query.taskStarted(stage, attempt);
      served(query);
    });
  }

  @Override
  public synchronized void taskEnded(int stage, int attempt, boolean isSuccess, double tookMs) {
    pass(stage, query -> {
      if (isSuccess) {
        query.taskSucceeded(stage, attempt, tookMs);
      } else {
        query.taskFailed(stage, attempt);
      }
      served(query);
    });
  }

  @Override
  public synchronized void taskLost(int stage, int attempt) {
    pass(stage, query -> query.taskLost(stage, attempt));
  }
}
