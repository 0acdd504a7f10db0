package parcae.spark.guest;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * Measures how long an order takes while many queries are open. It is run by hand.
 *
 * <p>Arguments: a policy file, or - for none; number of queries (500), stages per query (5), orders
 * (5000), users (1). Between two orders 50 ms pass, in which tasks start and end. In one of ten
 * steps a query ends and another one arrives. So the virtual run has as much work as in a real
 * application.
 */
final class PlanningBenchmark {
  private static final int TASKS = 100;
  private static final int CORES = 200;
  private static final int STEP_MS = 50;

  private final Random random = new Random(1);
  private final Planner planner;
  private final int numStages;
  private final int numUsers;
  private final List<Integer> open = new ArrayList<>();
  private long timeMs;
  private int numQueries;
  private long numTasks;

  private PlanningBenchmark(Policy policy, int numStages, int numUsers) {
    planner = new Planner(policy, () -> timeMs, () -> timeMs, user -> 1);
    planner.coresChanged(CORES);
    this.numStages = numStages;
    this.numUsers = numUsers;
  }

  private void arrive() {
    int query = numQueries++;
    List<Follower.ListedStage> stages = new ArrayList<>();
    for (int i = 0; i < numStages; i++) {
      int id = query * numStages + i;
      List<Integer> parents = i == 0 ? List.of() : List.of(id - 1);
      stages.add(new Follower.ListedStage(id, 1 + random.nextInt(TASKS), parents));
    }
    planner.jobStarted(new Follower.StartedJob(
        query, "job " + query, null, List.of(), "query " + query, stages)
        .by("user " + query % numUsers, ""));
    planner.stageSubmitted(query * numStages, 0, TASKS);
    planner.stageSubmitted(query * numStages + 1, 0, TASKS);
    open.add(query);
  }

  private void step() {
    timeMs += STEP_MS;
    for (int i = 0; i < CORES / 4; i++) {
      int query = open.get(random.nextInt(Math.min(open.size(), 20)));
      int stage = query * numStages + random.nextInt(2);
      planner.taskStarted(stage, 0);
      planner.taskHeld(numTasks, stage, 1, timeMs);
      int tookMs = 50 + random.nextInt(300);
      planner.taskReleased(numTasks++, stage, 1, timeMs, timeMs + tookMs);
      planner.taskEnded(stage, 0, true, tookMs);
    }
    if (random.nextInt(10) == 0) {
      planner.jobEnded(open.remove(0), true);
      arrive();
    }
  }

  public static void main(String[] args) throws Exception {
    int numOpen = args.length > 1 ? Integer.parseInt(args[1]) : 500;
    int numStages = args.length > 2 ? Integer.parseInt(args[2]) : 5;
    int numOrders = args.length > 3 ? Integer.parseInt(args[3]) : 5_000;
    int numUsers = args.length > 4 ? Integer.parseInt(args[4]) : 1;
    Policy policy = args[0].equals("-") ? Policy.plain() : Policy.read(Path.of(args[0]));
    PlanningBenchmark bench = new PlanningBenchmark(policy, numStages, numUsers);
    for (int i = 0; i < numOpen; i++) {
      bench.timeMs += bench.random.nextInt(STEP_MS);
      bench.arrive();
    }
    double[] tookMs = new double[numOrders];
    double[] cpuMs = new double[numOrders];
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    for (int i = 0; i < numOrders; i++) {
      bench.step();
      long start = System.nanoTime();
      long startCpu = threads.getCurrentThreadCpuTime();
      bench.planner.plan();
      cpuMs[i] = (threads.getCurrentThreadCpuTime() - startCpu) / 1e6;
      tookMs[i] = (System.nanoTime() - start) / 1e6;
    }
    System.out.printf("%s, %d queries of %d stages, %d users%n",
        policy.name(), numOpen, numStages, numUsers);
    print("time passed", tookMs);
    print("time on a core", cpuMs);
  }

  private static void print(String what, double[] ms) {
    double first = ms[0]; // includes compilation, and all queries arrive before it
    Arrays.sort(ms);
    System.out.printf(
        "  %-15s p50 %6.3f ms, p99 %6.3f ms, p99.9 %6.3f ms, first %6.3f ms%n",
        what, ms[ms.length / 2], ms[ms.length * 99 / 100], ms[ms.length * 999 / 1000], first);
  }
}
