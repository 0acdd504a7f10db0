package parcae.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What this application and the service know of each other: jobs, stages, and the slots that the service lent to stages.
 *
 * A slot is a core (or spark.task.cpus of them). A slot is lent to a stage by a command and stays lent until another command
 * takes it away; a task takes a free slot of its stage when it is launched and gives it back when it ends. So of a stage at most
 * as many tasks run at once as slots are lent to it. Which slot a task holds is this class's own business: slots are alike, so
 * where the service takes away a slot whose task still runs, the task gets another free slot of its stage.
 *
 * No Spark types, no I/O. Every method locks the object; none calls out.
 */
final class Books {
  /** A job of the service: a Spark job, or all Spark jobs of one query. */
  static final class Job {
    final long id;
    final String key;
    final String name;
    final boolean isOpen;
    final long arrivalMs;
    final Map<Integer, Stage> stages = new LinkedHashMap<>();
    final Set<Integer> sparkJobs = new LinkedHashSet<>();
    boolean isToldOf;

    Job(long id, String key, String name, boolean isOpen, long arrivalMs) {
      this.id = id;
      this.key = key;
      this.name = name;
      this.isOpen = isOpen;
      this.arrivalMs = arrivalMs;
    }

    boolean isDone() {
      for (Stage stage : stages.values()) {
        if (!stage.isDone()) {
          return false;
        }
      }
      return true;
    }
  }

  /** A stage of a job; `numTasks` counts those that were finished before it was first submitted, too. */
  static final class Stage {
    final int id;
    final Job job;
    final int numTasks;
    final Set<Integer> parents = new LinkedHashSet<>();
    final BitSet done = new BitSet();
    final Map<Integer, Slot> holders = new HashMap<>();
    final Map<Integer, Integer> running = new HashMap<>();
    final Deque<Slot> free = new ArrayDeque<>();
    int numDoneBefore;
    int attempt = -1;
    long rank = Long.MAX_VALUE;

    Stage(int id, Job job, int numTasks) {
      this.id = id;
      this.job = job;
      this.numTasks = numTasks;
    }

    int finished() {
      return Math.min(numTasks, numDoneBefore + done.cardinality());
    }

    boolean isDone() {
      return finished() == numTasks;
    }

    /** Whether a parent's output got lost and is being made again: Spark will submit this stage anew after it. */
    boolean isBlocked() {
      return !isDone() && toldParents().stream().anyMatch(id -> !job.stages.get(id).isDone());
    }

    /** The parents, as `sync` tells them: where all of a stage's own output is there, what it was made from does not matter. */
    List<Integer> toldParents() {
      List<Integer> told = new ArrayList<>(parents);
      told.removeIf(id -> isDone() && !job.stages.get(id).isDone());
      return told;
    }

    int numLent() {
      return free.size() + holders.size();
    }

    int numLaunchable() {
      return attempt < 0 ? 0 : Math.max(0, numTasks - finished() - running.size());
    }
  }

  /** What the service calls a slot. `isAsked`: a task's end was told with it and the service has not said yet what comes next. */
  static final class Slot {
    final int id;
    Job job;
    Stage stage;
    int partition = -1;
    boolean isAsked;

    Slot(int id) {
      this.id = id;
    }
  }

  /** A task that ended: well after so many ms, or with a negative number badly. */
  private static final class Ended {
    final Stage stage;
    final long durationMs;

    Ended(Stage stage, long durationMs) {
      this.stage = stage;
      this.durationMs = durationMs;
    }
  }

  /** A stage as the DAG scheduler has it: how many outputs are missing, and whether it is being run. */
  static final class StageShape {
    final int id;
    final int numTasks;
    final int numMissing;
    final boolean isRunning;
    final List<Integer> parents;

    StageShape(int id, int numTasks, int numMissing, boolean isRunning, List<Integer> parents) {
      this.id = id;
      this.numTasks = numTasks;
      this.numMissing = numMissing;
      this.isRunning = isRunning;
      this.parents = parents;
    }
  }

  /** A Spark job as the DAG scheduler has it: parents come before children. */
  static final class JobShape {
    final int sparkJob;
    final String key;
    final String name;
    final boolean isOpen;
    final List<StageShape> stages;

    JobShape(int sparkJob, String key, String name, boolean isOpen, List<StageShape> stages) {
      this.sparkJob = sparkJob;
      this.key = key;
      this.name = name;
      this.isOpen = isOpen;
      this.stages = stages;
    }
  }

  private static final int MAX_OVER = 1000;

  private final Map<String, Job> jobs = new LinkedHashMap<>();
  private final Map<Integer, Stage> stages = new HashMap<>();
  private final Map<Integer, Slot> slots = new LinkedHashMap<>();
  private final Map<String, List<Integer>> slotsOf = new HashMap<>();
  private final List<Map<String, Object>> outbox = new ArrayList<>();
  private final List<Slot> asked = new ArrayList<>(); // by events in the outbox
  private final List<Slot> asking = new ArrayList<>(); // by events that were sent and not answered yet
  private final Deque<Ended> untold = new ArrayDeque<>(); // until there is a slot to tell them with
  private final Set<String> overKeys = new LinkedHashSet<>(); // of the queries that ended last
  private long nextJob;
  private int nextSlot;
  private long nextRank;
  private boolean isObeying;
  private boolean isDirty = true;
  private String whyDirty = "the beginning";

  // What happened, for the report.
  private long numGuided;
  private long numUnguided;

  // ---- what Spark tells -----------------------------------------------------------------------------------------------

  /** An executor with room for so many tasks at once came. */
  synchronized void executorAdded(String executor, int numSlots) {
    executorRemoved(executor);
    List<Integer> own = new ArrayList<>();
    for (int i = 0; i < numSlots; i++) {
      Slot slot = new Slot(nextSlot++);
      slots.put(slot.id, slot);
      own.add(slot.id);
    }
    slotsOf.put(executor, own);
    differ("an executor came");
  }

  /** An executor went; what ran there is told by `failed`. */
  synchronized void executorRemoved(String executor) {
    List<Integer> own = slotsOf.remove(executor);
    if (own != null) {
      for (int id : own) {
        release(slots.remove(id));
      }
      differ("an executor went");
    }
  }

  synchronized boolean knowsStage(int stage) {
    return stages.containsKey(stage);
  }

  /** The key of the job that the stage belongs to; null where it is unknown. */
  synchronized String ownerOf(int stage) {
    Stage known = stages.get(stage);
    return known == null ? null : known.job.key;
  }

  /**
   * Takes up a Spark job: a new job, or more stages of one that is there. Stages that are known stay as they are, but for output
   * that got lost, and for parents: a stage whose output got lost after its job had been over is run again, as a new one, before
   * those that wait for it.
   */
  synchronized void jobSeen(JobShape shape, long nowMs) {
    Job job = jobs.get(shape.key);
    boolean isNew = job == null;
    if (isNew) {
      job = new Job(nextJob++, shape.key, shape.name, shape.isOpen && !overKeys.contains(shape.key), nowMs);
    }
    List<Stage> added = new ArrayList<>();
    for (StageShape told : shape.stages) {
      if (stages.containsKey(told.id) || told.numMissing == 0) {
        compare(job.stages.get(told.id), told);
        continue;
      }
      Stage stage = new Stage(told.id, job, told.numTasks);
      for (int parent : told.parents) {
        if (job.stages.containsKey(parent)) {
          stage.parents.add(parent);
        }
      }
      stage.numDoneBefore = told.numTasks - told.numMissing;
      job.stages.put(told.id, stage);
      stages.put(told.id, stage);
      added.add(stage);
    }
    if (added.isEmpty() && isNew) {
      return;
    }
    job.sparkJobs.add(shape.sparkJob);
    jobs.put(shape.key, job);
    if (added.isEmpty()) {
      return;
    }
    for (Stage stage : added) {
      if (stage.numDoneBefore > 0) {
        differ("a stage that was partly there"); // only `sync` can say so
      }
    }
    if (isNew) {
      event("job_arrived").put("job", Wire.job(job, false));
      job.isToldOf = true;
    } else if (job.isToldOf) {
      Map<String, Object> event = event("stages_added");
      event.put("job_id", job.id);
      event.put("stages", Wire.stages(added, false));
    } else {
      differ("a job that had been over goes on");
    }
  }

  /** Parents that a known stage did not have before, and output that is no longer there, are told by `sync`. */
  private void compare(Stage stage, StageShape told) {
    for (int parent : stage == null ? List.<Integer>of() : told.parents) {
      if (stage.job.stages.containsKey(parent) && stage.parents.add(parent)) {
        differ("stage " + stage.id + " waits for stage " + parent);
      }
    }
    if (stage != null && stage.isDone() && told.numMissing > 0 && !told.isRunning) {
      begin(stage, told.numMissing);
      differ("output of stage " + stage.id + " got lost");
    }
  }

  private static void begin(Stage stage, int numMissing) {
    stage.numDoneBefore = stage.numTasks - numMissing;
    stage.done.clear();
  }

  /** A task set was submitted: these many tasks of the stage are yet to be done. */
  synchronized void submitted(int stageId, int attempt, int numMissing) {
    Stage stage = stages.get(stageId);
    if (stage == null) {
      return;
    }
    int before = stage.finished();
    begin(stage, numMissing);
    stage.attempt = attempt;
    if (stage.finished() != before || attempt > 0) {
      differ("stage " + stageId + " was submitted with " + numMissing + " of " + stage.numTasks + " tasks, attempt " + attempt);
    }
  }

  /** Whether a task of this stage may be launched now. */
  synchronized boolean mayLaunch(int stageId) {
    Stage stage = stages.get(stageId);
    return !isObeying || stage == null || !stage.free.isEmpty();
  }

  /** A task was launched; a copy of a running task holds no slot. */
  synchronized void launched(int stageId, int partition) {
    Stage stage = stages.get(stageId);
    if (stage == null) {
      return;
    }
    boolean isCopy = stage.running.merge(partition, 1, Integer::sum) > 1;
    if (isCopy || stage.holders.containsKey(partition)) {
      return;
    }
    Slot slot = stage.free.poll();
    for (int others = stage.free.size(); slot != null && slot.isAsked && others > 0; others--) {
      stage.free.add(slot); // better one that surely stays
      slot = stage.free.poll();
    }
    if (slot != null) {
      slot.partition = partition;
      stage.holders.put(partition, slot);
      numGuided++;
    } else {
      numUnguided++;
    }
  }

  /**
   * A task ended well.
   *
   * @return whether it counts: of copies only the first does
   */
  synchronized boolean succeeded(int stageId, int partition, long durationMs) {
    Stage stage = stages.get(stageId);
    if (stage == null) {
      return true;
    }
    leaves(stage, partition);
    if (stage.done.get(partition)) {
      return false;
    }
    stage.done.set(partition);
    Slot slot = stage.holders.remove(partition);
    if (slot != null) {
      slot.partition = -1;
      stage.free.add(slot);
      tell(new Ended(stage, Math.max(0, durationMs)), slot);
    } else {
      differ("a task of stage " + stageId + " ran without a slot");
    }
    if (stage.job.isDone() && !stage.job.isOpen) {
      forget(stage.job); // the service knows by itself
    }
    return true;
  }

  /** A task failed, was killed or got lost, and will be tried again (or its job fails, which is told by `sparkJobEnded`). */
  synchronized void failed(int stageId, int partition, boolean wasCounted) {
    Stage stage = stages.get(stageId);
    if (stage == null) {
      return;
    }
    if (wasCounted) { // it had been reported as finished, but its result or its output is gone
      if (stage.done.get(partition)) {
        stage.done.clear(partition);
        differ("a finished task of stage " + stageId + " got lost");
      }
      return;
    }
    if (leaves(stage, partition)) {
      return; // a copy still runs
    }
    Slot slot = stage.holders.remove(partition);
    if (slot != null) {
      slot.partition = -1;
      stage.free.add(slot);
      tell(new Ended(stage, -1), slot);
    }
  }

  /**
   * Tells that a task ended, with a slot that works for its stage as the service sees it. A slot with which an end was told just
   * now may have been taken away since (the answer is on its way); then another slot of the stage must do, or the news waits.
   */
  private void tell(Ended ended, Slot first) {
    if (isDirty) {
      return; // `sync` tells it
    }
    Stage stage = ended.stage;
    Slot found = first != null && !first.isAsked ? first : null;
    for (Slot slot : found == null ? stage.free : List.<Slot>of()) {
      found = found == null && !slot.isAsked ? slot : found;
    }
    for (Slot slot : found == null ? stage.holders.values() : List.<Slot>of()) {
      found = found == null && !slot.isAsked ? slot : found;
    }
    if (found == null) {
      untold.add(ended);
      return;
    }
    Map<String, Object> event = event(ended.durationMs < 0 ? "task_failed" : "task_finished");
    event.put("slot", found.id);
    event.put("job_id", stage.job.id);
    event.put("stage_id", stage.id);
    if (ended.durationMs >= 0) {
      event.put("duration_ms", ended.durationMs);
      found.isAsked = true;
      asked.add(found);
    }
  }

  /** Whether another attempt of the task still runs. */
  private boolean leaves(Stage stage, int partition) {
    Integer left = stage.running.computeIfPresent(partition, (p, count) -> count > 1 ? count - 1 : null);
    return left != null;
  }

  /** A task need not run any more: an older attempt of its stage did it. */
  synchronized void done(int stageId, int partition) {
    Stage stage = stages.get(stageId);
    if (stage != null && !stage.done.get(partition)) {
      stage.done.set(partition);
      differ("a task of stage " + stageId + " was done by another attempt");
    }
  }

  /** Finished tasks of a stage were lost with their executor. */
  synchronized void undone(int stageId, List<Integer> partitions) {
    for (int partition : partitions) {
      failed(stageId, partition, true);
    }
  }

  /** A Spark job ended; of its stages that are not done no more tasks will run (another Spark job's stages stay). */
  synchronized void sparkJobEnded(int sparkJob, Collection<Integer> ownStages, boolean isSuccess) {
    for (Job job : new ArrayList<>(jobs.values())) {
      if (!job.sparkJobs.remove(sparkJob)) {
        continue;
      }
      if (job.sparkJobs.isEmpty() && !job.isOpen) {
        end(job, !isSuccess);
        continue;
      }
      for (int id : ownStages) {
        Stage stage = job.stages.get(id);
        if (stage != null && !stage.isDone()) {
          drop(stage);
          differ("stage " + id + " was not needed any more");
        }
      }
    }
  }

  /** A query ended; Spark jobs of its that come later are jobs as any other. */
  synchronized void queryEnded(String key, boolean isSuccess) {
    overKeys.add(key);
    if (overKeys.size() > MAX_OVER) {
      overKeys.remove(overKeys.iterator().next());
    }
    Job job = jobs.get(key);
    if (job != null) {
      end(job, !isSuccess);
    }
  }

  private void end(Job job, boolean isFailed) {
    forget(job);
    if (job.isToldOf && (job.isOpen || !job.isDone())) {
      Map<String, Object> event = event("job_ended");
      event.put("job_id", job.id);
      event.put("is_failed", isFailed);
    }
    untold.removeIf(ended -> ended.stage.job == job);
    for (Stage stage : job.stages.values()) {
      stage.free.clear();
      stage.holders.clear();
    }
    for (Slot slot : slots.values()) {
      if (slot.stage != null && slot.stage.job == job) {
        slot.stage = null;
        slot.partition = -1;
      }
      if (slot.job == job) {
        slot.job = null;
      }
    }
  }

  private void forget(Job job) {
    jobs.remove(job.key);
    for (Stage stage : job.stages.values()) {
      stages.remove(stage.id);
    }
  }

  private void drop(Stage stage) {
    stage.job.stages.remove(stage.id);
    stage.job.stages.values().forEach(other -> other.parents.remove(stage.id));
    stages.remove(stage.id);
    stage.free.clear();
    stage.holders.clear();
    for (Slot slot : slots.values()) {
      if (slot.stage == stage) {
        slot.stage = null;
        slot.partition = -1;
      }
    }
  }

  private void release(Slot slot) {
    if (slot.stage != null) {
      slot.stage.free.remove(slot);
      if (slot.partition >= 0) {
        slot.stage.holders.remove(slot.partition);
      }
      slot.stage = null;
    }
    slot.partition = -1;
  }

  // ---- what the service tells -----------------------------------------------------------------------------------------

  /**
   * Carries out commands.
   *
   * @return whether tasks may be launched that could not before
   */
  synchronized boolean obey(Wire.Commands reply) {
    boolean hasMore = false;
    for (Slot slot : asking) {
      slot.isAsked = false;
    }
    asking.clear();
    for (Wire.Command command : reply.commands) {
      Slot slot = slots.get(command.slot);
      if (slot == null || command.kind.equals("move")) {
        continue; // gone since; or on its way: `start` or `idle` follows
      }
      Stage stage = command.kind.equals("start") ? stageOf(command.stageId) : null;
      hasMore |= stage != null && stage != slot.stage;
      reassign(slot, stage);
    }
    Map<Integer, Integer> told = new HashMap<>();
    for (int i = reply.stages.size() - 1; i >= 0; i--) {
      Wire.StageSlots entry = reply.stages.get(i);
      told.put(entry.stageId, entry.slots);
      Stage stage = stages.get(entry.stageId);
      if (stage != null) {
        stage.rank = --nextRank;
      }
    }
    for (int left = untold.size(); left > 0; left--) {
      Ended ended = untold.poll();
      if (ended.stage.numLent() == 0) {
        differ("a task of stage " + ended.stage.id + " ended that the service does not know of");
      } else {
        tell(ended, null);
      }
    }
    if (outbox.isEmpty()) { // else the service does not know yet what we know
      told.forEach((id, count) -> {
        Stage stage = stages.get(id);
        if (stage != null && stage.numLent() != count) {
          differ("stage " + id + " has " + stage.numLent() + " slots here and " + count + " there");
        }
      });
    }
    return hasMore;
  }

  /** A stage of a job that is not over, or over here but not there: some of its ends wait for a slot. */
  private Stage stageOf(int id) {
    Stage stage = stages.get(id);
    for (Ended ended : stage == null ? untold : List.<Ended>of()) {
      stage = ended.stage.id == id ? ended.stage : stage;
    }
    return stage;
  }

  private void reassign(Slot slot, Stage stage) {
    if (slot.stage == stage) {
      return;
    }
    Stage from = slot.stage;
    if (from != null && slot.partition >= 0) {
      Slot other = from.free.poll();
      if (other == null) {
        differ("slot " + slot.id + " was taken from a running task");
        from.holders.remove(slot.partition);
      } else {
        other.partition = slot.partition;
        from.holders.put(slot.partition, other);
      }
      slot.partition = -1;
    } else if (from != null) {
      from.free.remove(slot);
    }
    slot.stage = stage;
    if (stage != null) {
      slot.job = stage.job;
      stage.free.add(slot);
    }
  }

  // ---- what the service is told ---------------------------------------------------------------------------------------

  private Map<String, Object> event(String kind) {
    Map<String, Object> event = new LinkedHashMap<>();
    event.put("kind", kind);
    if (!isDirty) { // else `sync` tells it; nothing is kept while there is no service
      outbox.add(event);
      notifyAll();
    }
    return event;
  }

  private void differ(String why) {
    if (!isDirty) {
      isDirty = true;
      whyDirty = why;
      outbox.clear();
      asked.clear();
      untold.clear();
    }
    notifyAll();
  }

  /** The next thing that is told must be `sync`. */
  synchronized void needSync(String why) {
    differ(why);
  }

  synchronized boolean isDirty() {
    return isDirty;
  }

  synchronized String whyDirty() {
    return whyDirty;
  }

  synchronized boolean hasNews() {
    return (isDirty && !slots.isEmpty()) || !outbox.isEmpty();
  }

  /** Waits until there is something to tell, at most so long. */
  synchronized void awaitNews(long timeoutMs) throws InterruptedException {
    if (!hasNews() && timeoutMs > 0) {
      wait(timeoutMs);
    }
  }

  synchronized void wake() {
    notifyAll();
  }

  synchronized boolean hasSlots() {
    return !slots.isEmpty();
  }

  /** The events since the last call. */
  synchronized List<Map<String, Object>> takeEvents() {
    List<Map<String, Object>> taken = new ArrayList<>(outbox);
    outbox.clear();
    asking.addAll(asked);
    asked.clear();
    return taken;
  }

  /** Everything, as `sync` tells it: running tasks take slots anew, all other slots are free of stages. */
  synchronized Map<String, Object> takeSync(long seq, long clockMs) {
    outbox.clear();
    asked.clear();
    asking.clear();
    untold.clear();
    isDirty = false;
    for (Stage stage : stages.values()) {
      stage.free.clear();
      stage.holders.clear();
    }
    Deque<Slot> left = new ArrayDeque<>();
    for (Slot slot : slots.values()) {
      slot.stage = null;
      slot.partition = -1;
      slot.isAsked = false;
      if (slot.job != null && !jobs.containsKey(slot.job.key)) {
        slot.job = null;
      }
      left.add(slot);
    }
    List<Job> listed = new ArrayList<>();
    for (Job job : jobs.values()) {
      job.isToldOf = !job.stages.isEmpty() && (job.isOpen || !job.isDone());
      if (job.isToldOf) {
        listed.add(job);
        for (Stage stage : job.stages.values()) {
          int room = stage.isBlocked() ? 0 : stage.numTasks - stage.finished(); // tasks of an older attempt may be done again
          for (int partition : stage.running.keySet()) {
            if (!stage.done.get(partition) && !left.isEmpty() && room-- > 0) {
              Slot slot = left.poll();
              slot.job = job;
              slot.stage = stage;
              slot.partition = partition;
              stage.holders.put(partition, slot);
            }
          }
        }
      }
    }
    for (Slot slot : left) {
      if (slot.job != null && !slot.job.isToldOf) {
        slot.job = null;
      }
    }
    return Wire.sync(seq, clockMs, slots.values(), listed);
  }

  /** From now on tasks are launched as the service says, or as Spark does by itself. */
  synchronized void setObeying(boolean obeying) {
    isObeying = obeying;
  }

  synchronized boolean isObeying() {
    return isObeying;
  }

  /** The stage's place in the order of offers; smaller comes first. */
  synchronized long rank(int stageId) {
    Stage stage = stages.get(stageId);
    return stage == null || !isObeying ? Long.MAX_VALUE : stage.rank;
  }

  /** Why nothing runs. */
  enum Stall { NONE, NO_SLOT, UNUSED_SLOT }

  /** Whether nothing runs although something could: for want of slots, or although there are some. */
  synchronized Stall stall() {
    Stall stall = Stall.NONE;
    for (Stage stage : stages.values()) {
      if (!stage.running.isEmpty()) {
        return Stall.NONE;
      }
      if (stage.numLaunchable() > 0 && stall != Stall.UNUSED_SLOT) {
        stall = stage.free.isEmpty() ? Stall.NO_SLOT : Stall.UNUSED_SLOT;
      }
    }
    return isObeying && !slots.isEmpty() ? stall : Stall.NONE;
  }

  /** Tasks that were launched with a slot so far. */
  synchronized long numGuided() {
    return numGuided;
  }

  /** Tasks that were launched without one so far: while the service was away. */
  synchronized long numUnguided() {
    return numUnguided;
  }

  /** Jobs, stages, events and ends of tasks that are kept now. */
  synchronized int numKept() {
    return jobs.size() + stages.size() + outbox.size() + untold.size() + asked.size() + asking.size() + overKeys.size();
  }
}
