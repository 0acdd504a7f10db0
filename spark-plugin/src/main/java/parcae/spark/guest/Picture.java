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
 * The state that is sent to the service: the open jobs of the application (its queries) and the
 * events since the last message.
 *
 * <p>The listener's thread changes the picture and the link's thread takes messages from it.
 * Neither holds the lock for longer than it takes to copy the content.
 *
 * <p>Events are checked against the picture, so that both sides count the same. Copies of tasks and
 * ends of tasks of earlier attempts are not sent.
 */
final class Picture extends Following<Picture.Job> {
  /** With more events than this, the whole state is sent instead. */
  static final int MAX_EVENTS = 10_000;
  private static final int MAX_NAMES = 16;
  /** Of how many ended queries the keys are remembered; the service remembers no more. */
  private static final int MAX_ENDED = 4_096;

  private final Runnable onEvents;
  private final List<Map<String, Object>> events = new ArrayList<>();
  /** The `tasks` events that are not sent yet, by stage. */
  private final Map<Integer, Map<String, Object>> counts = new HashMap<>();
  /**
   * How many queries a key has had, by key, the last one that ended last. A key is used again by
   * threads that began within an SQL execution: all their later jobs have its id.
   */
  private final Map<String, Integer> uses = new LinkedHashMap<>() {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Integer> eldest) {
      return size() > MAX_ENDED;
    }
  };
  private long clockMs;
  private long clockNs = System.nanoTime(); // when `clockMs` was set
  private int cores;
  private boolean isListening;
  private boolean needsState = true;
  private boolean isUrgent; // more happened than task starts and ends
  private boolean hasNewCores;

  /** Takes an action to run when there is something to send after there was nothing. */
  Picture(Runnable onEvents) {
    this.onEvents = onEvents;
  }

  // ---- events of Spark ----

  @Override
  public synchronized void coresChanged(int newCores) {
    cores = Math.min(newCores, Wire.MAX_CORES);
    hasNewCores = true;
    signal(true);
  }

  @Override
  Job opened(StartedJob started, Set<String> planNames) {
    Set<String> names = new LinkedHashSet<>(started.givenNames);
    names.addAll(planNames);
    names.add(started.plainName);
    List<String> sent = new ArrayList<>();
    names.stream().limit(MAX_NAMES).forEach(name -> sent.add(Wire.text(name)));
    return new Job(started.query, 1 + uses.getOrDefault(started.query, 0), sent, clockNow());
  }

  @Override
  void extended(Job job, List<Integer> added) {
    if (added.isEmpty()) {
      return;
    }
    if (!job.isSent) {
      job.isSent = true;
      event("job_arrived").put("job", job.described());
    } else {
      List<Object> stages = new ArrayList<>();
      added.forEach(id -> stages.add(job.stages.get(id).described(job.stageIds())));
      Map<String, Object> event = event("stages_added");
      event.put("job_id", job.id);
      event.put("stages", stages);
    }
    signal(true);
  }

  @Override
  void ended(Job job) {
    uses.remove(job.key); // to insert it as the last
    uses.put(job.key, job.use);
    job.stages.keySet().forEach(counts::remove);
    if (job.isSent) {
      Map<String, Object> event = event("job_ended");
      event.put("job_id", job.id);
      event.put("is_failed", job.hasFailed);
      signal(true);
    }
  }

  /** An open job, as the service knows it when it has received all events so far. */
  final class Job implements Following.OpenQuery {
    private final String key;
    private final int use; // of this key
    private final String id;
    private final List<String> names;
    private final long arrivalMs;
    private final Set<Integer> jobs = new HashSet<>();
    private final Map<Integer, SentStage> stages = new LinkedHashMap<>();
    private boolean isSent;
    private boolean hasFailed;

    private Job(String key, int use, List<String> names, long arrivalMs) {
      this.key = key;
      this.use = use;
      id = Wire.jobId(key, use);
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
      stages.put(id, new SentStage(id, tasks, parents));
    }

    @Override
    public void failed() {
      hasFailed = true;
    }

    @Override
    public void submitted(int id, int attempt, int tasks) {
      SentStage stage = stages.get(id);
      boolean isAgain = stage.isEnded || attempt > stage.attempt;
      if (tasks < 1 || (stage.isSubmitted && !isAgain)) {
        return;
      }
      stage.attempt = attempt;
      if (isAgain) {
        beginAgain(stage, tasks);
      } else if (tasks != stage.tasks) {
        stage.tasks = Math.max(tasks, stage.started); // Spark may have dropped an event
        stageEvent("stage_changed", stage).put("tasks", stage.tasks);
      }
      if (!stage.isSubmitted) {
        stage.isSubmitted = true;
        skipAbove(stage);
      }
    }

    /** A new attempt runs so many tasks: those whose output is lost and those that never ended. */
    private void beginAgain(SentStage stage, int tasks) {
      int running = stage.started - stage.finished;
      if (running > 0) {
        count(stage, "failed", running);
      }
      int lost = stage.finished + tasks - stage.tasks;
      // The event `stage_begun_again` can only describe lost output of a stage of the same size.
      // A stage that ended before all its tasks has no more than those that had finished.
      boolean hasSameSize =
          tasks <= stage.tasks && (!stage.isEnded || stage.finished == stage.tasks);
      boolean isExpressible = hasSameSize && (lost > 0 || (lost == 0 && !stage.isEnded));
      if (stage.finished > 0) {
        stage.executedMs = stage.executedMs * Math.max(0, stage.finished - lost) / stage.finished;
      }
      stage.isEnded = false;
      // If no task of it has finished here, as after Spark skipped it, what is not run again was
      // run by another job or is not known to have run: it does not count.
      stage.tasks = stage.finished == 0 ? tasks : Math.max(stage.tasks, tasks);
      stage.finished = stage.tasks - tasks;
      stage.started = stage.finished;
      if (!isExpressible) {
        requireState();
      } else if (lost > 0) {
        stageEvent("stage_begun_again", stage).put("tasks", lost);
      }
    }

    /**
     * Ends the ancestors of a running stage that have not run. Their output exists already, so
     * Spark skips them.
     */
    private void skipAbove(SentStage stage) {
      List<Integer> above = new ArrayList<>(stage.parents);
      while (!above.isEmpty()) {
        SentStage parent = stages.get(above.remove(above.size() - 1));
        if (parent != null && !parent.isSubmitted && !parent.isEnded) {
          closed(parent.id);
          above.addAll(parent.parents);
        }
      }
    }

    @Override
    public void closed(int id) {
      SentStage stage = stages.get(id);
      if (!stage.isEnded) {
        stage.isEnded = true;
        stageEvent("stage_ended", stage);
      }
    }

    @Override
    public void taskStarted(int id, int attempt) {
      SentStage stage = stages.get(id);
      if (stage.attempt == attempt && stage.started < stage.tasks) {
        stage.started++;
        count(stage, "started", 1);
      }
    }

    @Override
    public void taskSucceeded(int id, int attempt, double tookMs) {
      SentStage stage = stages.get(id);
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
      SentStage stage = stages.get(id);
      if (stage.attempt == attempt && stage.started > stage.finished) {
        stage.started--;
        count(stage, "failed", 1);
      }
    }

    @Override
    public void taskLost(int id, int attempt) {
      SentStage stage = stages.get(id);
      if (stage.attempt == attempt && !stage.isEnded && stage.finished > 0) {
        stage.executedMs = stage.executedMs * (stage.finished - 1) / stage.finished;
        stage.finished--;
        stage.started--;
        stageEvent("stage_begun_again", stage).put("tasks", 1);
      }
    }

    /** The job as a part of a message. */
    private Map<String, Object> described() {
      Map<String, Object> job = new LinkedHashMap<>();
      job.put("job_id", id);
      job.put("names", names);
      job.put("arrival_ms", arrivalMs);
      List<Object> all = new ArrayList<>();
      stages.values().forEach(stage -> all.add(stage.described(stages.keySet())));
      job.put("stages", all);
      return job;
    }

    private Map<String, Object> stageEvent(String type, SentStage stage) {
      counts.remove(stage.id); // later counts need a new event, since events are applied in order
      Map<String, Object> event = event(type);
      event.put("job_id", id);
      event.put("stage_id", stage.id);
      signal(true);
      return event;
    }

    /** Adds to the `tasks` event of a stage. */
    private void count(SentStage stage, String what, long more) {
      if (!isListening || needsState) {
        return;
      }
      Map<String, Object> event = counts.get(stage.id);
      // The service counts the starts of an event before its ends, but a failed task starts again.
      boolean isAgain = event != null && what.equals("started") && event.containsKey("failed");
      if (event == null || isAgain) {
        event = event("tasks");
        event.put("job_id", id);
        event.put("stage_id", stage.id);
        counts.put(stage.id, event);
      }
      event.merge(what, more, (one, other) -> (Long) one + (Long) other);
      signal(false);
    }
  }

  /** Whether no task runs although there are cores and tasks that could start. */
  synchronized boolean isStalled() {
    boolean couldRun = false;
    for (Job job : queries().values()) {
      for (SentStage stage : job.stages.values()) {
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

  // ---- messages for the link ----

  /** Milliseconds since 1970; runs on at its rate while the machine's clock is set back. */
  synchronized long clockNow() {
    long passedMs = (System.nanoTime() - clockNs) / 1_000_000;
    clockNs += passedMs * 1_000_000;
    clockMs = Math.max(clockMs + passedMs, System.currentTimeMillis());
    return clockMs;
  }

  /** Makes the next message a whole state; from then on events are kept. */
  synchronized void needState() {
    isListening = true;
    requireState();
  }

  /** Drops the events and makes the next message a whole state. */
  private void requireState() {
    forget();
    needsState = true;
    signal(true);
  }

  /** The connection has ended: from now on no events are kept. */
  synchronized void stopListening() {
    forget();
    isListening = false;
  }

  private void forget() {
    events.clear();
    counts.clear();
    isUrgent = false;
  }

  synchronized boolean needsState() {
    return needsState;
  }

  /** Whether something happened that was not sent yet. */
  synchronized boolean hasEvents() {
    return needsState || hasNewCores || !events.isEmpty();
  }

  /** Whether more happened than task starts and ends. */
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
    List<Object> jobs = new ArrayList<>();
    for (Job job : queries().values()) {
      job.isSent = !job.stages.isEmpty();
      if (job.isSent) {
        jobs.add(job.described());
      }
    }
    message.put("jobs", jobs);
    return message;
  }

  /** The message `events`: what happened since the last message. */
  synchronized Map<String, Object> takeEvents(long seq) {
    Map<String, Object> message = stamped("events", seq);
    if (hasNewCores) {
      hasNewCores = false;
      message.put("cores", cores);
    }
    message.put("events", new ArrayList<>(events));
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
      events.add(event);
    }
    return event;
  }

  /** Notes that there is something to send; runs the action if there was nothing before. */
  private void signal(boolean isNewUrgent) {
    if (!isListening) {
      return;
    }
    boolean isFirst = events.size() <= 1 || (isNewUrgent && !isUrgent);
    isUrgent |= isNewUrgent;
    if (events.size() > MAX_EVENTS) {
      forget();
      needsState = true;
      isUrgent = true;
    }
    if (isFirst) {
      onEvents.run();
    }
  }
}
