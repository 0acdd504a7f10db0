package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.net.Socket;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Random;
import java.util.TreeMap;

/**
 * A toy of Spark's scheduling in simulated time, with real books and a real service: random jobs on random executors, replies
 * that come late, and in rough weather failures, copies, lost executors and outputs, cancelled jobs, times without service.
 *
 * Arguments: port, number of runs, "calm" or "rough". Every run must end with all jobs done (or cancelled), the service must
 * never answer with an error, and in calm weather one `sync` must do and no stage may run more tasks than slots were told for it.
 */
final class ToyCluster {
  private static final int NUM_JOBS = 12;
  private static final long HORIZON_MS = 10_000_000;

  // ---- what is simulated ----------------------------------------------------------------------------------------------

  private static final class Event {
    final long atMs;
    final long number;
    final Runnable action;

    Event(long atMs, long number, Runnable action) {
      this.atMs = atMs;
      this.number = number;
      this.action = action;
    }
  }

  private static final class Task {
    final Stage stage;
    final int partition;
    final Executor executor;
    boolean isOver;

    Task(Stage stage, int partition, Executor executor) {
      this.stage = stage;
      this.partition = partition;
      this.executor = executor;
    }
  }

  private static final class Executor {
    final String name;
    final int cores;
    final List<Task> running = new ArrayList<>();
    boolean isThere = true;

    Executor(String name, int cores) {
      this.name = name;
      this.cores = cores;
    }
  }

  private static final class Stage {
    final int id;
    final Job job;
    final int numTasks;
    final List<Stage> parents = new ArrayList<>();
    final BitSet done = new BitSet();
    final BitSet pending = new BitSet();
    final BitSet ofAttempt = new BitSet();
    final Map<Integer, Executor> outputs = new HashMap<>();
    final List<Task> running = new ArrayList<>();
    boolean isSubmitted;
    int attempt;
    int numTokens; // as last told

    Stage(int id, Job job, int numTasks) {
      this.id = id;
      this.job = job;
      this.numTasks = numTasks;
    }

    /** Whether the attempt has nothing left to do; outputs of older ones may have got lost meanwhile. */
    boolean isAttemptOver() {
      BitSet left = (BitSet) ofAttempt.clone();
      left.andNot(done);
      return left.isEmpty();
    }

    boolean isDone() {
      return done.cardinality() == numTasks;
    }
  }

  private static final class Job {
    final int id;
    final boolean isOpen;
    final Map<Integer, Stage> stages = new LinkedHashMap<>();
    boolean isSeen;
    boolean isOver;
    int numShown; // of an open job

    Job(int id, boolean isOpen) {
      this.id = id;
      this.isOpen = isOpen;
    }

    String key() {
      return (isOpen ? "query " : "job ") + id;
    }
  }

  private final Random random;
  private final boolean isRough;
  private final DataInputStream in;
  private final java.io.OutputStream out;
  private final Books books = new Books();
  private final PriorityQueue<Event> events =
      new PriorityQueue<>(Comparator.<Event>comparingLong(e -> e.atMs).thenComparingLong(e -> e.number));
  private final List<Executor> executors = new ArrayList<>();
  private final List<Job> jobs = new ArrayList<>();
  private final Map<Integer, Stage> stages = new TreeMap<>();
  private long nowMs = 1000;
  private long numEvents;
  private long seq;
  private long wakeMs = -1;
  private int numExecutors;
  private int nextStage;
  private boolean isAsking;
  private boolean isFirst = true;
  private boolean isAway;
  int numSyncs;
  int numRequests;
  int numIrregular;
  int numUnguided;
  int numTasks;

  ToyCluster(Socket socket, long seed, boolean isRough) throws Exception {
    this.random = new Random(seed);
    this.isRough = isRough;
    this.in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
    this.out = socket.getOutputStream();
    Wire.write(out, Wire.hello("toy-" + seed + isRough, "toy", "toy", Wire.newNonce()));
    Check.same(Wire.read(in).path("type").asText(), "welcome", "welcome");
  }

  private void at(long delayMs, Runnable action) {
    events.add(new Event(nowMs + Math.max(0, delayMs), numEvents++, action));
  }

  private boolean chance(double probability) {
    return isRough && random.nextDouble() < probability;
  }

  void run() {
    for (int number = 2 + random.nextInt(3); number > 0; number--) {
      executorComes();
    }
    at(0, () -> { });
    for (int number = 0; number < NUM_JOBS; number++) {
      Job job = newJob(number);
      jobs.add(job);
      at(100 + random.nextInt(2000), () -> arrive(job));
    }
    if (isRough) {
      for (int number = 0; number < 3; number++) {
        at(random.nextInt(3000), this::executorGoes);
      }
      at(random.nextInt(3000), () -> cancel(jobs.get(random.nextInt(NUM_JOBS))));
      at(random.nextInt(3000), this::goAway);
    }
    while (!events.isEmpty()) {
      Event event = events.poll();
      Check.that(event.atMs < HORIZON_MS, "stuck: " + unfinished());
      nowMs = event.atMs;
      event.action.run();
      launch();
      speak();
    }
    Check.that(jobs.stream().allMatch(job -> job.isOver), "never done: " + unfinished());
    Check.that(!books.isObeying() || !books.isDirty() || !books.hasSlots(), "the last word was not said");
  }

  private String unfinished() {
    StringBuilder text = new StringBuilder("dirty " + books.isDirty() + ", asking " + isAsking + ", stall " + books.stall());
    for (Job job : jobs) {
      for (Stage stage : job.isOver ? List.<Stage>of() : job.stages.values()) {
        text.append("\n  job ").append(job.id).append(" stage ").append(stage.id).append(": ").append(stage.done.cardinality());
        text.append(" of ").append(stage.numTasks).append(", runs ").append(stage.running.size()).append(", submitted ");
        text.append(stage.isSubmitted).append(", waits ").append(stage.pending.cardinality()).append(", tokens ");
        text.append(stage.numTokens).append(", after");
        stage.parents.forEach(parent -> text.append(" ").append(parent.id));
      }
    }
    return text.toString();
  }

  // ---- jobs and stages ------------------------------------------------------------------------------------------------

  private Job newJob(int id) {
    Job job = new Job(id, random.nextInt(3) == 0);
    for (int number = 1 + random.nextInt(5); number > 0; number--) {
      Stage stage = new Stage(nextStage++, job, 1 + random.nextInt(random.nextInt(4) == 0 ? 60 : 12));
      for (Stage parent : job.stages.values()) {
        if (random.nextInt(3) == 0) {
          stage.parents.add(parent);
        }
      }
      job.stages.put(stage.id, stage);
      stages.put(stage.id, stage);
    }
    return job;
  }

  private void arrive(Job job) {
    job.numShown = job.isOpen ? 1 : job.stages.size();
    advance(job);
  }

  /** Submits the stages that can run; an open job shows its next stage when all those shown are done. */
  private void advance(Job job) {
    if (job.isOver) {
      return;
    }
    List<Stage> shown = new ArrayList<>(job.stages.values()).subList(0, job.numShown);
    if (shown.stream().allMatch(Stage::isDone)) {
      if (job.numShown == job.stages.size()) {
        job.isOver = true;
        at(random.nextInt(20), () -> ended(job, true));
        return;
      }
      job.numShown++;
      at(random.nextInt(30), () -> advance(job));
      return;
    }
    for (Stage stage : shown) {
      if (!stage.isSubmitted && !stage.isDone() && stage.parents.stream().allMatch(Stage::isDone)) {
        submit(job, stage, shown);
      }
    }
  }

  private void submit(Job job, Stage stage, List<Stage> shown) {
    if (!books.knowsStage(stage.id) || stage.attempt > 0) {
      List<Books.StageShape> shapes = new ArrayList<>();
      for (Stage each : shown) {
        List<Integer> parents = new ArrayList<>();
        each.parents.forEach(parent -> parents.add(parent.id));
        int missing = each.numTasks - each.done.cardinality();
        shapes.add(new Books.StageShape(each.id, each.numTasks, missing, each.isSubmitted, parents));
      }
      books.jobSeen(new Books.JobShape(job.id, job.key(), "job " + job.id % 4, job.isOpen, shapes), nowMs);
    }
    stage.isSubmitted = true;
    stage.pending.set(0, stage.numTasks);
    stage.pending.andNot(stage.done);
    stage.ofAttempt.clear();
    stage.ofAttempt.or(stage.pending);
    books.submitted(stage.id, stage.attempt++, stage.pending.cardinality());
    if (stage.attempt > 1) {
      numIrregular++;
    }
  }

  private void ended(Job job, boolean isSuccess) {
    books.sparkJobEnded(job.id, new ArrayList<>(job.stages.keySet()), isSuccess);
    if (job.isOpen) {
      books.queryEnded(job.key(), isSuccess);
    }
  }

  private void cancel(Job job) {
    if (job.isOver || job.numShown == 0) {
      return;
    }
    numIrregular++;
    job.isOver = true;
    at(random.nextInt(10), () -> ended(job, false));
    for (Stage stage : job.stages.values()) {
      stage.pending.clear();
      for (Task task : new ArrayList<>(stage.running)) {
        at(random.nextInt(20), () -> fails(task));
      }
    }
  }

  // ---- tasks ----------------------------------------------------------------------------------------------------------

  private void launch() {
    List<Stage> queue = new ArrayList<>();
    for (Stage stage : stages.values()) {
      if (!stage.pending.isEmpty() && stage.isSubmitted) {
        queue.add(stage);
      }
    }
    queue.sort(Comparator.comparingLong(stage -> books.rank(stage.id)));
    for (Stage stage : queue) {
      Executor executor;
      while (!stage.pending.isEmpty() && books.mayLaunch(stage.id) && (executor = withRoom()) != null) {
        int partition = stage.pending.nextSetBit(0);
        stage.pending.clear(partition);
        start(new Task(stage, partition, executor));
        if (!isRough) {
          Check.that(stage.running.size() <= stage.numTokens, "stage " + stage.id + " runs more than " + stage.numTokens);
        }
      }
    }
  }

  private Executor withRoom() {
    for (Executor executor : executors) {
      if (executor.running.size() < executor.cores) {
        return executor;
      }
    }
    return null;
  }

  private void start(Task task) {
    numTasks++;
    books.launched(task.stage.id, task.partition);
    task.executor.running.add(task);
    task.stage.running.add(task);
    int tookMs = random.nextInt(4) == 0 ? random.nextInt(500) : 1 + random.nextInt(40);
    if (chance(0.02)) {
      at(random.nextInt(tookMs + 1), () -> fails(task));
    } else {
      at(tookMs, () -> succeeds(task, tookMs));
    }
    Executor other = withRoom();
    if (chance(0.02) && other != null) {
      Task copy = new Task(task.stage, task.partition, other);
      books.launched(copy.stage.id, copy.partition);
      other.running.add(copy);
      copy.stage.running.add(copy);
      at(random.nextInt(500), () -> succeeds(copy, 7));
    }
  }

  private void over(Task task) {
    task.isOver = true;
    task.executor.running.remove(task);
    task.stage.running.remove(task);
  }

  private void succeeds(Task task, int tookMs) {
    if (task.isOver) {
      return;
    }
    over(task);
    Stage stage = task.stage;
    books.succeeded(stage.id, task.partition, tookMs);
    if (!stage.done.get(task.partition)) {
      stage.done.set(task.partition);
      stage.outputs.put(task.partition, task.executor);
    }
    stage.pending.clear(task.partition);
    for (Task copy : new ArrayList<>(stage.running)) {
      if (copy.partition == task.partition) {
        at(random.nextInt(10), () -> fails(copy)); // killed, unless it ends before
      }
    }
    if (stage.isSubmitted && stage.isAttemptOver()) {
      stage.isSubmitted = false;
      at(random.nextInt(5), () -> advance(stage.job));
    }
  }

  private void fails(Task task) {
    if (task.isOver) {
      return;
    }
    over(task);
    books.failed(task.stage.id, task.partition, false);
    boolean runsAgain = task.stage.running.stream().anyMatch(other -> other.partition == task.partition);
    if (!task.stage.job.isOver && !task.stage.done.get(task.partition) && !runsAgain && task.stage.isSubmitted) {
      task.stage.pending.set(task.partition);
    }
  }

  // ---- executors ------------------------------------------------------------------------------------------------------

  private void executorComes() {
    Executor executor = new Executor("executor " + numExecutors++, 1 + random.nextInt(6));
    executors.add(executor);
    if (isRough) {
      at(random.nextInt(20), () -> books.executorAdded(executor.name, executor.cores));
    } else {
      books.executorAdded(executor.name, executor.cores);
    }
  }

  /** Its tasks fail, and the outputs that others still wait for are made again. */
  private void executorGoes() {
    if (executors.isEmpty()) {
      return;
    }
    numIrregular++;
    Executor executor = executors.remove(random.nextInt(executors.size()));
    executor.isThere = false;
    at(30 + random.nextInt(20), () -> books.executorRemoved(executor.name));
    at(random.nextInt(2000), this::executorComes);
    for (Stage stage : stages.values()) {
      if (stage.job.isOver || stage.job.numShown == 0) {
        continue;
      }
      List<Integer> lost = new ArrayList<>();
      stage.outputs.forEach((partition, where) -> {
        if (where == executor && stage.done.get(partition)) {
          lost.add(partition);
        }
      });
      if (lost.isEmpty()) {
        continue;
      }
      boolean wasDone = stage.isDone();
      lost.forEach(stage.done::clear);
      if (!wasDone) {
        lost.removeIf(partition -> !stage.ofAttempt.get(partition) || !stage.isSubmitted);
        books.undone(stage.id, lost);
        lost.forEach(stage.pending::set);
      } else {
        stage.isSubmitted = false; // its children fail to fetch, it is submitted again a little later, and then they are
        for (Stage child : stage.job.stages.values()) {
          if (child.parents.contains(stage)) {
            child.isSubmitted &= child.isDone();
            child.pending.clear();
            for (Task task : new ArrayList<>(child.running)) {
              if (random.nextBoolean()) {
                at(random.nextInt(10), () -> fails(task));
              }
            }
          }
        }
        at(50, () -> advance(stage.job));
      }
    }
    for (Task task : new ArrayList<>(executor.running)) {
      fails(task);
    }
  }

  // ---- the service ----------------------------------------------------------------------------------------------------

  private void goAway() {
    numIrregular++;
    isAway = true;
    books.setObeying(false);
    books.needSync("away");
    at(random.nextInt(1000), () -> isAway = false);
  }

  private void speak() {
    if (isAsking || isAway) {
      return;
    }
    if (books.isDirty() && books.hasSlots()) {
      Check.that(isRough || isFirst, "a sync in calm weather: " + books.whyDirty());
      numSyncs++;
      ask(books.takeSync(++seq, nowMs), true);
      isFirst = false;
    } else if (!isFirst && (books.hasNews() || (wakeMs >= 0 && nowMs >= wakeMs))) {
      ask(Wire.events(++seq, nowMs, books.takeEvents()), false);
    }
  }

  private void ask(Map<String, Object> request, boolean isSync) {
    numRequests++;
    Wire.Commands reply;
    try {
      Wire.write(out, request);
      JsonNode node = Wire.read(in);
      reply = Wire.commands(node);
      Check.same(reply.seq, seq, "seq");
    } catch (Exception error) {
      throw new AssertionError("the service refused " + request + ": " + error.getMessage(), error);
    }
    isAsking = true;
    at(random.nextInt(30), () -> {
      isAsking = false;
      if (isAway) {
        return; // the reply got lost with the connection
      }
      books.setObeying(true);
      for (Wire.StageSlots entry : reply.stages) {
        stages.get(entry.stageId).numTokens = entry.slots;
      }
      books.obey(reply);
      wakeMs = reply.wakeMs;
      if (wakeMs >= 0) {
        at(wakeMs - nowMs, () -> { });
      }
    });
  }

  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(args[0]);
    boolean isRough = args[2].equals("rough");
    for (int seed = 0; seed < Integer.parseInt(args[1]); seed++) {
      try (Socket socket = new Socket("127.0.0.1", port)) {
        socket.setTcpNoDelay(true);
        ToyCluster cluster = new ToyCluster(socket, seed, isRough);
        try {
          cluster.run();
        } catch (AssertionError error) {
          throw new AssertionError("seed " + seed + " at " + cluster.nowMs + " ms: " + error.getMessage(), error);
        }
        System.out.printf("seed %d: %d tasks, %d requests, %d syncs for %d irregular things%n", seed, cluster.numTasks,
            cluster.numRequests, cluster.numSyncs, cluster.numIrregular);
      }
    }
    Check.done();
  }
}
