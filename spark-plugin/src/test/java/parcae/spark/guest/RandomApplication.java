package parcae.spark.guest;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;

/**
 * Plays random applications as Spark runs them, and prints every message of the picture.
 *
 * <p>Tasks fail and are tried again at once, executors are lost with the output of tasks, stages
 * fail because such output is missing and are submitted again, and jobs are cancelled. Another
 * program then checks that the service accepts all messages. Every application begins with a state.
 */
final class RandomApplication {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int MOST_RUNNING = 12;

  /** A stage as Spark's scheduler knows it. */
  private static final class Stage {
    final int id;
    final boolean[] hasOutput; // by task
    final List<Stage> parents = new ArrayList<>();
    final TreeSet<Integer> pending = new TreeSet<>();
    int attempt = -1;
    boolean isRunning;

    Stage(int id, int tasks) {
      this.id = id;
      this.hasOutput = new boolean[tasks];
    }

    boolean isDone() {
      for (boolean has : hasOutput) {
        if (!has) {
          return false;
        }
      }
      return true;
    }
  }

  /** A task that runs. */
  private static final class Task {
    final Stage stage;
    final int attempt;
    final int index;

    Task(Stage stage, int index) {
      this.stage = stage;
      this.attempt = stage.attempt;
      this.index = index;
    }
  }

  private final Random random;
  private final Picture picture = new Picture(() -> { });
  private final Map<Integer, List<Stage>> jobs = new LinkedHashMap<>();
  private final List<Task> running = new ArrayList<>();
  private int numJobs;
  private int numStages;
  private long seq = 1;

  private RandomApplication(long seed) {
    random = new Random(seed);
    picture.needState();
    picture.coresChanged(MOST_RUNNING);
  }

  private void startJob() {
    List<Stage> stages = new ArrayList<>();
    int count = 1 + random.nextInt(4);
    for (int i = 0; i < count; i++) {
      Stage stage = new Stage(numStages++, 1 + random.nextInt(8));
      boolean isLast = i == count - 1;
      for (Stage earlier : stages) {
        if (isLast || random.nextBoolean()) {
          stage.parents.add(earlier);
        }
      }
      stages.add(stage);
    }
    List<Follower.ListedStage> listed = new ArrayList<>();
    for (Stage stage : stages) {
      List<Integer> parents = new ArrayList<>();
      stage.parents.forEach(parent -> parents.add(parent.id));
      listed.add(new Follower.ListedStage(stage.id, stage.hasOutput.length, parents));
    }
    Collections.shuffle(listed, random);
    int id = numJobs++;
    picture.jobStarted(
        new Follower.StartedJob(id, "job " + id, null, List.of(), "name " + id % 3, listed));
    jobs.put(id, stages);
    submit(last(stages));
  }

  private static Stage last(List<Stage> stages) {
    return stages.get(stages.size() - 1);
  }

  /** Submits a stage, or the parents whose output it lacks. */
  private void submit(Stage stage) {
    if (stage.isRunning || stage.isDone()) {
      return;
    }
    boolean isReady = true;
    for (Stage parent : stage.parents) {
      isReady &= parent.isDone();
      submit(parent);
    }
    if (!isReady) {
      return;
    }
    stage.attempt++;
    stage.isRunning = true;
    stage.pending.clear();
    for (int i = 0; i < stage.hasOutput.length; i++) {
      if (!stage.hasOutput[i]) {
        stage.pending.add(i);
      }
    }
    picture.stageSubmitted(stage.id, stage.attempt, stage.pending.size());
  }

  private void launchTask() {
    for (List<Stage> stages : jobs.values()) {
      for (Stage stage : stages) {
        boolean canStart = stage.isRunning && !stage.pending.isEmpty();
        if (canStart && running.size() < MOST_RUNNING && random.nextBoolean()) {
          running.add(new Task(stage, stage.pending.pollFirst()));
          picture.taskStarted(stage.id, stage.attempt);
          return;
        }
      }
    }
  }

  /** The job of a stage; null if it has ended. */
  private Integer jobOf(Stage stage) {
    for (Map.Entry<Integer, List<Stage>> job : jobs.entrySet()) {
      if (job.getValue().contains(stage)) {
        return job.getKey();
      }
    }
    return null;
  }

  private void endTask(Task task, boolean succeeds) {
    Stage stage = task.stage;
    Integer job = jobOf(stage);
    running.remove(task);
    picture.taskEnded(stage.id, task.attempt, succeeds && job != null, 10 + random.nextInt(1_000));
    boolean isOfAttempt = stage.isRunning && stage.attempt == task.attempt;
    if (job == null) {
      return;
    }
    if (!succeeds) {
      if (isOfAttempt && !stage.hasOutput[task.index]) {
        stage.pending.add(task.index);
      }
      return;
    }
    stage.hasOutput[task.index] = true;
    stage.pending.remove(task.index);
    if (stage.isRunning && stage.isDone()) {
      stage.isRunning = false;
      picture.stageCompleted(stage.id);
      List<Stage> stages = jobs.get(job);
      if (last(stages) == stage) {
        endJob(job, true);
      } else {
        submit(last(stages));
      }
    }
  }

  private void endJob(int job, boolean succeeds) {
    for (Stage stage : jobs.remove(job)) {
      stage.isRunning = false;
    }
    picture.jobEnded(job, succeeds);
  }

  /** An executor is lost, and with it the output of tasks of stages that run. */
  private void loseExecutor() {
    for (List<Stage> stages : jobs.values()) {
      for (Stage stage : stages) {
        for (int i = 0; stage.isRunning && i < stage.hasOutput.length; i++) {
          if (stage.hasOutput[i] && random.nextInt(4) == 0) {
            stage.hasOutput[i] = false;
            stage.pending.add(i);
            picture.taskLost(stage.id, stage.attempt);
          }
        }
      }
    }
  }

  /** A task cannot fetch output of a parent: its stage fails, and both run again. */
  private void failFetch(Task task) {
    Stage stage = task.stage;
    Integer job = jobOf(stage);
    boolean isOfAttempt = stage.isRunning && stage.attempt == task.attempt;
    if (job == null || !isOfAttempt || stage.parents.isEmpty()) {
      return;
    }
    running.remove(task);
    picture.taskEnded(stage.id, task.attempt, false, 0);
    stage.isRunning = false;
    Stage parent = stage.parents.get(random.nextInt(stage.parents.size()));
    parent.hasOutput[random.nextInt(parent.hasOutput.length)] = false;
    for (int i = 0; i < stage.hasOutput.length; i++) {
      stage.hasOutput[i] &= random.nextInt(3) > 0;
    }
    submit(last(jobs.get(job)));
  }

  private void step() {
    int kind = random.nextInt(100);
    Task task = running.isEmpty() ? null : running.get(random.nextInt(running.size()));
    if (kind < 8 && jobs.size() < 5) {
      startJob();
    } else if (kind < 50) {
      launchTask();
    } else if (kind < 88 && task != null) {
      endTask(task, true);
    } else if (kind < 93 && task != null) {
      endTask(task, false);
      launchTask();
    } else if (kind < 95) {
      loseExecutor();
    } else if (kind < 98 && task != null) {
      failFetch(task);
    } else if (kind == 99 && !jobs.isEmpty()) {
      endJob(jobs.keySet().iterator().next(), false);
    }
  }

  private void play(int steps) throws Exception {
    for (int i = 0; i < steps; i++) {
      step();
      if (picture.needsState()) {
        System.out.println(JSON.writeValueAsString(picture.takeState(seq++)));
      } else if (random.nextInt(4) == 0) {
        System.out.println(JSON.writeValueAsString(picture.takeEvents(seq++)));
      }
    }
  }

  /** Takes the number of applications and the number of steps of each. */
  public static void main(String[] args) throws Exception {
    for (int seed = 0; seed < Integer.parseInt(args[0]); seed++) {
      System.out.println("{\"type\":\"application\"}");
      new RandomApplication(seed).play(Integer.parseInt(args[1]));
    }
  }
}
