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
final class Picture extends Following<Picture.Job> {
  /** With more news than these the service is sent everything instead. */
  static final int MAX_NEWS = 10_000;
  private static final int MAX_NAMES = 16;

  private final Runnable bell;
  private final List<Map<String, Object>> news = new ArrayList<>();
  private final Map<Integer, Map<String, Object>> counts = new HashMap<>(); // `tasks` in the news
  private long clockMs;
  private int cores;
  private boolean isListening;
  private boolean needsState = true;
  private boolean isUrgent;
  private boolean hasNewCores;

  /** The bell is rung where there is news after there was none. */
  Picture(Runnable bell) {
    this.bell = bell;
  }

  // ---- what Spark tells ----

  @Override
  public synchronized void coresChanged(int newCores) {
    cores = newCores;
    hasNewCores = true;
    ring(true);
  }

  @Override
  Job opened(StartedJob started, Set<String> planNames) {
    Set<String> names = new LinkedHashSet<>(started.givenNames);
    names.addAll(planNames);
    names.add(started.plainName);
    List<String> told = new ArrayList<>();
    names.stream().limit(MAX_NAMES).forEach(name -> told.add(Wire.text(name)));
    return new Job(started.query, told, clockNow());
  }

  @Override
  void extended(Job job, List<Integer> added) {
    if (added.isEmpty()) {
      return;
    }
    if (!job.isKnown) {
      job.isKnown = true;
      event("job_arrived").put("job", job.described());
    } else {
      List<Object> stages = new ArrayList<>();
      added.forEach(id -> stages.add(job.described(job.stages.get(id))));
      Map<String, Object> event = event("stages_added");
      event.put("job_id", job.key);
      event.put("stages", stages);
    }
    ring(true);
  }

  @Override
  void ended(Job job) {
    job.stages.keySet().forEach(counts::remove);
    if (job.isKnown) {
      Map<String, Object> event = event("job_ended");
      event.put("job_id", job.key);
      event.put("is_failed", job.hasFailed);
      ring(true);
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

  /** An open job: what the service knows of it, once it is told what is in the news. */
  final class Job implements Following.Followed {
    private final String key;
    private final List<String> names;
    private final long arrivalMs;
    private final Set<Integer> jobs = new HashSet<>();
    private final Map<Integer, Stage> stages = new LinkedHashMap<>();
    private boolean isKnown;
    private boolean hasFailed;

    private Job(String key, List<String> names, long arrivalMs) {
      this.key = key;
      this.names = names;
      this.arrivalMs = arrivalMs;
    }

    @Override
    public Set<Integer> jobs() {
      return jobs;
    }

    @Override
    public Set<Integer> stageIds() {
      return stages.keySet();
    }

    @Override
    public void listed(int id, int tasks, List<Integer> parents) {
      stages.put(id, new Stage(id, tasks, parents));
    }

    @Override
    public void jobFailed() {
      hasFailed = true;
    }

    @Override
    public void submitted(int id, int attempt, int tasks) {
      Stage stage = stages.get(id);
      boolean isAgain = stage.isEnded || attempt > stage.attempt;
      if (tasks < 1 || (stage.isSubmitted && !isAgain)) {
        return;
      }
      stage.attempt = attempt;
      if (isAgain) {
        beginAgain(stage, tasks);
      } else if (tasks != stage.tasks) {
        stage.tasks = Math.max(tasks, stage.started); // Spark may drop an event in a hurry
        stageEvent("stage_changed", stage).put("tasks", stage.tasks);
      }
      if (!stage.isSubmitted) {
        stage.isSubmitted = true;
        skipAbove(stage);
      }
    }

    /** So many tasks are to run: those whose output is lost, and those that never ended. */
    private void beginAgain(Stage stage, int tasks) {
      int running = stage.started - stage.finished;
      if (running > 0) {
        count(stage, "failed", running);
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
        stageEvent("stage_begun_again", stage).put("tasks", lost);
      }
    }

    /** Stages above one that runs have their output, or ran: those that did not run will not. */
    private void skipAbove(Stage stage) {
      List<Integer> above = new ArrayList<>(stage.parents);
      while (!above.isEmpty()) {
        Stage parent = stages.get(above.remove(above.size() - 1));
        if (parent != null && !parent.isSubmitted && !parent.isEnded) {
          closed(parent.id);
          above.addAll(parent.parents);
        }
      }
    }

    @Override
    public void closed(int id) {
      Stage stage = stages.get(id);
      if (!stage.isEnded) {
        stage.isEnded = true;
        stageEvent("stage_ended", stage);
      }
    }

    @Override
    public void taskStarted(int id, int attempt) {
      Stage stage = stages.get(id);
      if (stage.attempt == attempt && stage.started < stage.tasks) {
        stage.started++;
        count(stage, "started", 1);
      }
    }

    @Override
    public void taskSucceeded(int id, int attempt, double tookMs) {
      Stage stage = stages.get(id);
      if (stage.attempt != attempt || stage.finished >= stage.tasks) {
        return;
      }
      if (stage.started == stage.finished) {
        stage.started++;
        count(stage, "started", 1);
      }
      stage.finished++;
      long ms = Math.max(0, Math.round(tookMs));
      stage.executedMs += ms;
      count(stage, "finished", 1);
      count(stage, "executed_ms", ms);
    }

    @Override
    public void taskFailed(int id, int attempt) {
      Stage stage = stages.get(id);
      if (stage.attempt == attempt && stage.started > stage.finished) {
        stage.started--;
        count(stage, "failed", 1);
      }
    }

    private Map<String, Object> described() {
      Map<String, Object> told = new LinkedHashMap<>();
      told.put("job_id", key);
      told.put("names", names);
      told.put("arrival_ms", arrivalMs);
      List<Object> all = new ArrayList<>();
      stages.values().forEach(stage -> all.add(described(stage)));
      told.put("stages", all);
      return told;
    }

    private Map<String, Object> described(Stage stage) {
      Map<String, Object> told = new LinkedHashMap<>();
      told.put("stage_id", stage.id);
      told.put("tasks", stage.tasks);
      List<Integer> parents = new ArrayList<>(stage.parents);
      parents.retainAll(stages.keySet());
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

    private Map<String, Object> stageEvent(String type, Stage stage) {
      counts.remove(stage.id); // what is counted from now on comes after this
      Map<String, Object> event = event(type);
      event.put("job_id", key);
      event.put("stage_id", stage.id);
      ring(true);
      return event;
    }

    private void count(Stage stage, String what, long more) {
      if (!isListening || needsState) {
        return;
      }
      Map<String, Object> event = counts.get(stage.id);
      if (event == null) {
        event = event("tasks");
        event.put("job_id", key);
        event.put("stage_id", stage.id);
        counts.put(stage.id, event);
      }
      event.merge(what, more, (one, other) -> (Long) one + (Long) other);
      ring(false);
    }
  }

  /** Whether no task runs although one could, and cores are there. */
  synchronized boolean isStalled() {
    boolean couldRun = false;
    for (Job job : queries().values()) {
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

  // ---- what the link takes ----

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
    for (Job job : queries().values()) {
      job.isKnown = !job.stages.isEmpty();
      if (job.isKnown) {
        told.add(job.described());
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

  private Map<String, Object> event(String type) {
    Map<String, Object> event = Wire.message(type);
    if (isListening && !needsState) {
      news.add(event);
    }
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
