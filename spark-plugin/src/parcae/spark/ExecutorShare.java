package parcae.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The books where several applications share a cluster: a slot is an executor, and a task runs only where its slot is.
 *
 * The slots are numbered alike in all applications; which executor a number stands for is decided by the application that has it
 * now. A `move` asks for an executor: the next that registers is the slot that waits longest. A `release` gives the slot's
 * executor back. A slot that idles keeps its executor, so that it is there at once when it is moved to another job of this
 * application.
 *
 * While the service is away the application keeps its executors, uses them as Spark does, and after a while asks for as many as
 * its fallback says if it has work. Back in touch it says what it has; what the service has given to others since is given back.
 */
final class ExecutorShare extends Books {
  private static final long GRACE_MS = 3000; // so long after the service went before more executors are asked for
  private static final int MAX_SAMPLES = 1 << 12;

  /** What the master is to be told. */
  static final class Wanted {
    final long version;
    final int target;
    final int held;
    final long numCame;
    final List<String> leaving;
    final long longestWaitMs;

    Wanted(long version, int target, int held, long numCame, List<String> leaving, long longestWaitMs) {
      this.version = version;
      this.target = target;
      this.held = held;
      this.numCame = numCame;
      this.leaving = leaving;
      this.longestWaitMs = longestWaitMs;
    }
  }

  private final int fallback;
  private final Map<String, Slot> slotOf = new HashMap<>(); // by executor
  private final Set<String> executors = new LinkedHashSet<>(); // all that are registered
  private final Set<String> leaving = new LinkedHashSet<>(); // those among them that were given back
  private final Map<Slot, Long> expected = new LinkedHashMap<>(); // slots that are to come, and when that was said
  private final Map<String, List<int[]>> tasksOn = new HashMap<>(); // (stage, partition) of what runs on an executor
  private final Set<Slot> unsure = new HashSet<>(); // told to idle here by the `sync` that is being answered
  private boolean isSyncing;
  private boolean isPoked;
  private long version;
  private long awaySinceMs = System.currentTimeMillis();

  // For the report.
  private final List<Integer> movingMs = new ArrayList<>();
  private long numCame;
  private long numAtOnce;
  private long numCancelled;
  private long numGivenBack;
  private long numUnasked;
  private long numLost;
  private int most;

  ExecutorShare(int numSlots, int fallback) {
    this.fallback = fallback;
    for (int id = 0; id < numSlots; id++) {
      slots.put(id, new Slot(id));
    }
  }

  // ---- what Spark tells -----------------------------------------------------------------------------------------------

  @Override
  synchronized void executorAdded(String executor, int numTasks) {
    if (!executors.add(executor)) {
      return;
    }
    numCame++;
    Slot slot = expected.isEmpty() ? null : expected.keySet().iterator().next();
    if (slot != null) {
      long tookMs = System.currentTimeMillis() - expected.remove(slot);
      if (movingMs.size() < MAX_SAMPLES) {
        movingMs.add((int) tookMs);
      }
      attach(slot, executor);
      arrive(slot);
    } else if (isObeying()) { // nobody waits for it any more
      numUnasked++;
      leaving.add(executor);
    }
    most = Math.max(most, executors.size() - leaving.size());
    changed();
  }

  @Override
  synchronized void executorRemoved(String executor) {
    if (!executors.remove(executor)) {
      return;
    }
    tasksOn.remove(executor);
    Slot slot = slotOf.get(executor);
    if (slot != null) {
      detach(slot);
    }
    if (!leaving.remove(executor)) {
      numLost++;
      differ("an executor went");
    }
    changed();
  }

  @Override
  synchronized boolean mayLaunch(int stageId, String executor) {
    if (leaving.contains(executor)) {
      return false;
    }
    Stage stage = stages.get(stageId);
    if (!isObeying() || stage == null) {
      return true;
    }
    Slot slot = slotOf.get(executor);
    return slot != null && slot.stage == stage && slot.partition < 0;
  }

  @Override
  synchronized void launched(int stageId, int partition, String executor) {
    tasksOn.computeIfAbsent(executor, e -> new ArrayList<>()).add(new int[] {stageId, partition});
    super.launched(stageId, partition, executor);
  }

  @Override
  Slot takeFree(Stage stage, String executor) {
    Slot slot = slotOf.get(executor);
    return slot != null && stage.free.remove(slot) ? slot : null;
  }

  @Override
  synchronized boolean succeeded(int stageId, int partition, String executor, long durationMs) {
    ended(stageId, partition, executor);
    return super.succeeded(stageId, partition, executor, durationMs);
  }

  @Override
  synchronized void failed(int stageId, int partition, String executor, boolean wasCounted) {
    ended(stageId, partition, executor);
    super.failed(stageId, partition, executor, wasCounted);
  }

  private void ended(int stageId, int partition, String executor) {
    List<int[]> tasks = tasksOn.get(executor);
    if (tasks != null) {
      tasks.removeIf(task -> task[0] == stageId && task[1] == partition);
    }
  }

  // ---- slots and executors --------------------------------------------------------------------------------------------

  private void attach(Slot slot, String executor) {
    slot.executor = executor;
    slotOf.put(executor, slot);
  }

  private void detach(Slot slot) {
    release(slot);
    slotOf.remove(slot.executor);
    slot.executor = null;
    slot.job = null;
    slot.destination = null;
  }

  private void arrive(Slot slot) {
    slot.job = slot.destination == null ? null : slot.destination.job;
    slot.destination = null;
    event("slot_arrived").put("slot", slot.id);
  }

  private void giveBack(Slot slot) {
    leaving.add(slot.executor);
    detach(slot);
    numGivenBack++;
    changed();
  }

  /** The number of the one stands for the executor of the other from now on: so a running task keeps its executor. */
  @Override
  void handOver(Slot from, Slot to) {
    super.handOver(from, to);
    String executor = from.executor;
    attach(from, to.executor);
    attach(to, executor);
  }

  // ---- what the service tells -----------------------------------------------------------------------------------------

  @Override
  synchronized boolean obey(Wire.Commands reply) {
    if (reply.seq < 0) {
      return !isSyncing && follow(reply); // said before the service knew what `sync` tells: void
    }
    boolean hasMore = super.obey(reply);
    if (isSyncing) {
      isSyncing = false;
      reply.commands.forEach(command -> unsure.remove(slots.get(command.slot)));
      for (Slot slot : unsure) {
        if (slot.executor != null && slot.stage == null) {
          giveBack(slot); // another application has it
        }
      }
      unsure.clear();
    }
    return hasMore;
  }

  @Override
  boolean follow(Wire.Command command, Slot slot) {
    switch (command.kind) {
      case "move":
        move(slot, stageOf(command.stageId));
        return false;
      case "release":
        if (slot.executor != null) {
          reassign(slot, null); // a task that runs there goes on where its stage has another slot that is free
          giveBack(slot);
        } else if (expected.remove(slot) != null) {
          slot.destination = null;
          numCancelled++;
          changed();
        }
        return false;
      default:
        if (slot.executor == null) {
          if (command.kind.equals("start")) {
            differ("slot " + slot.id + " is to start although it is not here");
          }
          return false;
        }
        return super.follow(command, slot);
    }
  }

  private void move(Slot slot, Stage to) {
    if (to == null) {
      differ("slot " + slot.id + " is to move to a stage that is no more");
      return;
    }
    slot.destination = to;
    if (slot.executor != null) {
      reassign(slot, null);
      numAtOnce++;
      arrive(slot);
    } else {
      expected.putIfAbsent(slot, System.currentTimeMillis());
      changed();
    }
  }

  @Override
  synchronized void setObeying(boolean obeying) {
    if (isObeying() && !obeying) {
      awaySinceMs = System.currentTimeMillis();
      expected.keySet().forEach(slot -> slot.destination = null);
      expected.clear();
      isSyncing = false;
    }
    super.setObeying(obeying);
    changed();
  }

  // ---- what the service is told ---------------------------------------------------------------------------------------

  @Override
  synchronized void wake() {
    isPoked = true;
    super.wake();
  }

  @Override
  synchronized boolean hasNews() {
    return isPoked || super.hasNews();
  }

  @Override
  synchronized void awaitNews(long timeoutMs) throws InterruptedException {
    super.awaitNews(timeoutMs);
    isPoked = false;
  }

  @Override
  synchronized Map<String, Object> takeSync(long seq, long clockMs) {
    outbox.clear();
    asked.clear();
    asking.clear();
    untold.clear();
    isDirty = false;
    isSyncing = true;
    for (Stage stage : stages.values()) {
      stage.free.clear();
      stage.holders.clear();
    }
    for (Slot slot : slots.values()) {
      slot.stage = null;
      slot.partition = -1;
      slot.isAsked = false;
    }
    numberAll();
    List<Job> listed = new ArrayList<>();
    for (Job job : jobs.values()) {
      job.isToldOf = !job.stages.isEmpty() && (job.isOpen || !job.isDone());
      if (job.isToldOf) {
        listed.add(job);
      }
    }
    unsure.clear();
    for (Slot slot : slots.values()) {
      if (slot.job != null && !(jobs.containsKey(slot.job.key) && slot.job.isToldOf)) {
        slot.job = null;
      }
      if (slot.destination != null && !isListed(slot.destination)) {
        slot.destination = null;
        expected.remove(slot);
      }
      if (slot.executor != null && !holdsTask(slot)) {
        unsure.add(slot);
      }
    }
    changed();
    return Wire.sync(seq, clockMs, slots.values(), listed, false);
  }

  private boolean isListed(Stage stage) {
    return stages.get(stage.id) == stage && stage.job.isToldOf;
  }

  /** Gives every executor a number, and back those for which there is none. */
  private void numberAll() {
    List<Slot> spare = new ArrayList<>();
    for (Slot slot : slots.values()) {
      if (slot.executor == null && slot.destination == null) {
        spare.add(slot);
      }
    }
    Collections.shuffle(spare); // others may choose, too
    for (String executor : executors) {
      if (slotOf.containsKey(executor) || leaving.contains(executor)) {
        continue;
      }
      if (spare.isEmpty()) {
        leaving.add(executor);
      } else {
        attach(spare.remove(spare.size() - 1), executor);
      }
    }
  }

  /** Lets the slot be held by what runs on its executor, if the service may be told of that. */
  private boolean holdsTask(Slot slot) {
    for (int[] task : tasksOn.getOrDefault(slot.executor, List.of())) {
      Stage stage = stages.get(task[0]);
      int partition = task[1];
      boolean isTellable = stage != null && isListed(stage) && !stage.isBlocked() && !stage.done.get(partition);
      boolean isNew = isTellable && !stage.holders.containsKey(partition);
      if (isNew && stage.holders.size() < stage.numTasks - stage.finished()) { // tasks of an older attempt may be done again
        slot.job = stage.job;
        slot.stage = stage;
        slot.partition = partition;
        stage.holders.put(partition, slot);
        return true;
      }
    }
    return false;
  }

  /** An application may have to wait for executors as long as others have them. */
  @Override
  synchronized Stall stall() {
    return Stall.NONE;
  }

  // ---- what the master is told ----------------------------------------------------------------------------------------

  private void changed() {
    version++;
    notifyAll();
  }

  /** Waits until something changed since `seen`, at most so long, and says what the master is to be told. */
  synchronized Wanted awaitWanted(long seen, long timeoutMs) throws InterruptedException {
    long end = System.currentTimeMillis() + timeoutMs;
    for (long left = timeoutMs; version == seen && left > 0; left = end - System.currentTimeMillis()) {
      wait(left);
    }
    return wanted(System.currentTimeMillis());
  }

  synchronized Wanted wanted(long nowMs) {
    int held = executors.size() - leaving.size();
    int target = held + expected.size();
    if (!isObeying() && nowMs - awaySinceMs > GRACE_MS && !jobs.isEmpty()) {
      target = Math.max(target, fallback);
    }
    long longest = 0;
    for (long askedMs : expected.values()) {
      longest = Math.max(longest, nowMs - askedMs);
    }
    return new Wanted(version, target, held, numCame, new ArrayList<>(leaving), longest);
  }

  @Override
  synchronized Map<String, Object> report() {
    Map<String, Object> report = super.report();
    List<Integer> sorted = new ArrayList<>(movingMs);
    Collections.sort(sorted);
    report.put("executors_came", numCame);
    report.put("executors_given_back", numGivenBack);
    report.put("executors_lost", numLost);
    report.put("executors_unasked", numUnasked);
    report.put("executors_most", most);
    report.put("moves_within", numAtOnce);
    report.put("moves_cancelled", numCancelled);
    for (int percent : new int[] {0, 50, 90, 100}) {
      report.put("moving_p" + percent + "_ms", sorted.isEmpty() ? null : sorted.get((sorted.size() - 1) * percent / 100));
    }
    return report;
  }
}
