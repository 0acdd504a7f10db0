package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What the service is told: the open jobs of the application (its queries), and what happened to
 * them since it was told last. The listener's thread changes it, the link's thread takes from it;
 * neither waits longer than for a copy of what there is.
 *
 * <p>What happened is counted against the picture, so that both sides count the same: copies of
 * tasks and ends of tasks of earlier attempts are no news.
 */
final class Picture implements Follower {
  /** With more news than these the service is sent everything instead. */
  static final int MAX_NEWS = 10_000;
  private static final int MAX_NAMES = 16;

  private final Runnable bell;
  private final Map<String, List<String>> executions = new HashMap<>(); // open ones: names by plan
  private final Map<String, Job> jobs = new LinkedHashMap<>();
  private final Map<Integer, Job> jobOfSpark = new HashMap<>();
  private final Map<Integer, List<Integer>> stagesOfSpark = new HashMap<>();
  private final Map<Integer, Job> jobOfStage = new HashMap<>();
  private final List<Map<String, Object>> news = new ArrayList<>();
  private final Map<Integer, Map<String, Object>> counts = new HashMap<>(); // `tasks` in the news
  private long clockMs;
  private int cores;
  private boolean isListening;
  private boolean needsState = true;
  private boolean isUrgent;
  private boolean hasNewCores;

  private static final class Job {
    final String key;
    final List<String> names;
    final long arrivalMs;
    final Set<Integer> running = new HashSet<>(); // Spark's jobs
    final Map<Integer, Stage> stages = new LinkedHashMap<>();
    boolean isKnown; // to the service
    boolean hasFailed;

    Job(String key, List<String> names, long arrivalMs) {
      this.key = key;
      this.names = names;
      this.arrivalMs = arrivalMs;
    }
  }

  private static final class Stage {
    final int id;
    final List<Integer> parents;
    int tasks;
    int attempt;
    int started;
    int finished;
    long executedMs;
    boolean isSubmitted;
    boolean isEnded;

    Stage(int id, int tasks, List<Integer> parents) {
      this.id = id;
      this.tasks = tasks;
      this.parents = parents;
    }
  }

  /** The bell is rung where there is news after there was none. */
  Picture(Runnable bell) {
    this.bell = bell;
  }

  // ---- what Spark tells --------------------------------------------------------------------------

  @Override
  public synchronized void coresChanged(int newCores) {
    cores = newCores;
    hasNewCores = true;
    ring(true);
  }

  @Override
  public synchronized void executionStarted(String execution, String plan) {
    List<String> names = plan == null || plan.isEmpty()
        ? List.of()
        : List.of(Fingerprint.planName(plan), Fingerprint.shapeName(plan));
    executions.put(execution, names);
  }

  @Override
  public synchronized void executionEnded(String execution) {
    executions.remove(execution);
    close(execution);
  }

  @Override
  public synchronized void jobStarted(StartedJob started) {
    Job job = jobs.computeIfAbsent(
        started.query, key -> new Job(key, namesOf(started), clockNow()));
    job.running.add(started.id);
    jobOfSpark.put(started.id, job);
    List<Stage> added = new ArrayList<>();
    List<Integer> own = new ArrayList<>();
    for (ListedStage listed : started.stages) {
      if (!jobOfStage.containsKey(listed.id) && listed.tasks > 0) { // else another job's
        Stage stage = new Stage(listed.id, listed.tasks, listed.parents);
        job.stages.put(stage.id, stage);
        jobOfStage.put(stage.id, job);
        added.add(stage);
        own.add(stage.id);
      }
    }
    stagesOfSpark.put(started.id, own);
    if (!added.isEmpty()) {
      tell(job, added);
    }
  }

  private List<String> namesOf(StartedJob started) {
    Set<String> names = new LinkedHashSet<>(started.givenNames);
    names.addAll(executions.getOrDefault(started.query, List.of()));
    if (started.execution != null) {
      names.addAll(executions.getOrDefault(started.execution, List.of()));
    }
    names.add(started.plainName);
    List<String> found = new ArrayList<>();
    names.stream().limit(MAX_NAMES).forEach(name -> found.add(Wire.text(name)));
    return found;
  }

  private void tell(Job job, List<Stage> added) {
    if (!job.isKnown) {
      job.isKnown = true;
      Map<String, Object> event = event("job_arrived");
      event.put("job", described(job));
    } else {
      List<Object> stages = new ArrayList<>();
      added.forEach(stage -> stages.add(described(job, stage)));
      Map<String, Object> event = event("stages_added");
      event.put("job_id", job.key);
      event.put("stages", stages);
    }
    ring(true);
  }

  @Override
  public synchronized void jobEnded(int id, boolean isSuccess) {
    Job job = jobOfSpark.remove(id);
    List<Integer> stages = stagesOfSpark.remove(id);
    if (job == null) {
      return;
    }
    stages.forEach(stage -> end(job, job.stages.get(stage)));
    job.running.remove(id);
    job.hasFailed |= !isSuccess;
    if (job.running.isEmpty() && !executions.containsKey(job.key)) {
      close(job.key);
    }
  }

  private void close(String key) {
    Job job = jobs.remove(key);
    if (job == null) {
      return;
    }
    for (int id : job.running) {
      jobOfSpark.remove(id);
      stagesOfSpark.remove(id);
    }
    job.stages.keySet().forEach(jobOfStage::remove);
    job.stages.keySet().forEach(counts::remove);
    if (job.isKnown) {
      Map<String, Object> event = event("job_ended");
      event.put("job_id", key);
      event.put("is_failed", job.hasFailed);
      ring(true);
    }
  }

  @Override
  public synchronized void stageSubmitted(int id, int attempt, int tasks) {
    Job job = jobOfStage.get(id);
    if (job == null || tasks < 1) {
      return;
    }
    Stage stage = job.stages.get(id);
    boolean isAgain = stage.isEnded || attempt > stage.attempt;
    if (stage.isSubmitted && !isAgain) {
      return;
    }
    stage.attempt = attempt;
    if (isAgain) {
      beginAgain(job, stage, tasks);
    } else if (tasks != stage.tasks) {
      stage.tasks = Math.max(tasks, stage.started); // Spark may drop an event in a hurry
      stageEvent("stage_changed", job, stage).put("tasks", stage.tasks);
    }
    if (!stage.isSubmitted) {
      stage.isSubmitted = true;
      skipAbove(job, stage);
    }
  }

  /** So many tasks of the stage are to run: those that it lost, and those that it never ended. */
  private void beginAgain(Job job, Stage stage, int tasks) {
    int running = stage.started - stage.finished;
    if (running > 0) {
      count(job, stage, "failed", running);
    }
    int lost = stage.finished + tasks - stage.tasks;
    boolean canBeTold = tasks <= stage.tasks && (lost > 0 || (lost == 0 && !stage.isEnded));
    if (stage.finished > 0) {
      stage.executedMs = stage.executedMs * Math.max(0, stage.finished - lost) / stage.finished;
    }
    stage.isEnded = false;
    stage.tasks = Math.max(stage.tasks, tasks);
    stage.finished = stage.tasks - tasks;
    stage.started = stage.finished;
    if (!canBeTold) {
      tellAll();
    } else if (lost > 0) {
      stageEvent("stage_begun_again", job, stage).put("tasks", lost);
    }
  }

  /** Stages above one that runs have their output, or ran: those that did not run will not. */
  private void skipAbove(Job job, Stage stage) {
    List<Integer> above = new ArrayList<>(stage.parents);
    while (!above.isEmpty()) {
      Stage parent = job.stages.get(above.remove(above.size() - 1));
      if (parent != null && !parent.isSubmitted && !parent.isEnded) {
        end(job, parent);
        above.addAll(parent.parents);
      }
    }
  }

  @Override
  public synchronized void stageCompleted(int id) {
    Job job = jobOfStage.get(id);
    if (job != null) {
      end(job, job.stages.get(id));
    }
  }

  private void end(Job job, Stage stage) {
    if (stage != null && !stage.isEnded) {
      stage.isEnded = true;
      stageEvent("stage_ended", job, stage);
    }
  }

  @Override
  public synchronized void taskStarted(int id, int attempt) {
    Job job = jobOfStage.get(id);
    Stage stage = job == null ? null : job.stages.get(id);
    if (stage != null && stage.attempt == attempt && stage.started < stage.tasks) {
      stage.started++;
      count(job, stage, "started", 1);
    }
  }

  @Override
  public synchronized void taskEnded(int id, int attempt, boolean isSuccess, double tookMs) {
    Job job = jobOfStage.get(id);
    Stage stage = job == null ? null : job.stages.get(id);
    if (stage == null || stage.attempt != attempt || stage.finished >= stage.tasks) {
      return;
    }
    if (!isSuccess) {
      if (stage.started > stage.finished) {
        stage.started--;
        count(job, stage, "failed", 1);
      }
      return;
    }
    if (stage.started == stage.finished) {
      stage.started++;
      count(job, stage, "started", 1);
    }
    stage.finished++;
    long ms = Math.max(0, Math.round(tookMs));
    stage.executedMs += ms;
    count(job, stage, "finished", 1);
    count(job, stage, "executed_ms", ms);
  }

  /** Whether no task runs although one could, and cores are there. */
  synchronized boolean isStalled() {
    boolean couldRun = false;
    for (Job job : jobs.values()) {
      for (Stage stage : job.stages.values()) {
        if (stage.isEnded || !stage.isSubmitted) {
          continue;
        }
        if (stage.started > stage.finished) {
          return false;
        }
        couldRun |= stage.finished < stage.tasks;
      }
    }
    return couldRun && cores > 0;
  }

  // ---- what the link takes -----------------------------------------------------------------------

  /** Milliseconds since 1970; never less than before. */
  synchronized long clockNow() {
    clockMs = Math.max(clockMs, System.currentTimeMillis());
    return clockMs;
  }

  /** From now on the service is to be sent everything, and then what happens. */
  synchronized void needState() {
    isListening = true;
    tellAll();
  }

  private void tellAll() {
    forget();
    needsState = true;
    ring(true);
  }

  /** Nobody listens any more: nothing is kept. */
  synchronized void stopListening() {
    forget();
    isListening = false;
  }

  private void forget() {
    news.clear();
    counts.clear();
    isUrgent = false;
  }

  synchronized boolean needsState() {
    return needsState;
  }

  /** Whether something happened that the service was not told. */
  synchronized boolean hasNews() {
    return needsState || hasNewCores || !news.isEmpty();
  }

  /** Whether more happened than tasks that began and ended. */
  synchronized boolean isUrgent() {
    return isUrgent || needsState;
  }

  /** The message `state`: all open jobs. */
  synchronized Map<String, Object> takeState(long seq) {
    forget();
    needsState = false;
    hasNewCores = false;
    Map<String, Object> message = stamped("state", seq);
    message.put("cores", cores);
    List<Object> told = new ArrayList<>();
    for (Job job : jobs.values()) {
      job.isKnown = !job.stages.isEmpty();
      if (job.isKnown) {
        told.add(described(job));
      }
    }
    message.put("jobs", told);
    return message;
  }

  /** The message `events`: what happened since the last. */
  synchronized Map<String, Object> takeEvents(long seq) {
    Map<String, Object> message = stamped("events", seq);
    if (hasNewCores) {
      hasNewCores = false;
      message.put("cores", cores);
    }
    message.put("events", new ArrayList<>(news));
    forget();
    return message;
  }

  private Map<String, Object> stamped(String type, long seq) {
    Map<String, Object> message = Wire.message(type);
    message.put("seq", seq);
    message.put("clock_ms", clockNow());
    return message;
  }

  // ---- messages ----------------------------------------------------------------------------------

  private static Map<String, Object> described(Job job) {
    Map<String, Object> told = new LinkedHashMap<>();
    told.put("job_id", job.key);
    told.put("names", job.names);
    told.put("arrival_ms", job.arrivalMs);
    List<Object> stages = new ArrayList<>();
    job.stages.values().forEach(stage -> stages.add(described(job, stage)));
    told.put("stages", stages);
    return told;
  }

  private static Map<String, Object> described(Job job, Stage stage) {
    Map<String, Object> told = new LinkedHashMap<>();
    told.put("stage_id", stage.id);
    told.put("tasks", stage.tasks);
    List<Integer> parents = new ArrayList<>(stage.parents);
    parents.retainAll(job.stages.keySet());
    if (!parents.isEmpty()) {
      told.put("parents", parents);
    }
    if (stage.started > 0) {
      told.put("started", stage.started);
      told.put("finished", stage.finished);
      told.put("executed_ms", stage.executedMs);
    }
    if (stage.isEnded) {
      told.put("is_ended", true);
    }
    return told;
  }

  private Map<String, Object> event(String type) {
    Map<String, Object> event = Wire.message(type);
    if (isListening && !needsState) {
      news.add(event);
    }
    return event;
  }

  private Map<String, Object> stageEvent(String type, Job job, Stage stage) {
    counts.remove(stage.id); // what is counted from now on comes after this
    Map<String, Object> event = event(type);
    event.put("job_id", job.key);
    event.put("stage_id", stage.id);
    ring(true);
    return event;
  }

  private void count(Job job, Stage stage, String key, long more) {
    if (!isListening || needsState) {
      return;
    }
    Map<String, Object> event = counts.get(stage.id);
    if (event == null) {
      event = stageCounts(job, stage);
      counts.put(stage.id, event);
    }
    event.merge(key, more, (one, other) -> (Long) one + (Long) other);
    ring(false);
  }

  private Map<String, Object> stageCounts(Job job, Stage stage) {
    Map<String, Object> event = event("tasks");
    event.put("job_id", job.key);
    event.put("stage_id", stage.id);
    return event;
  }

  private void ring(boolean isNewsUrgent) {
    if (!isListening) {
      return;
    }
    boolean isFirst = news.size() <= 1 || (isNewsUrgent && !isUrgent);
    isUrgent |= isNewsUrgent;
    if (news.size() > MAX_NEWS) {
      forget();
      needsState = true;
      isUrgent = true;
    }
    if (isFirst) {
      bell.run();
    }
  }
}
