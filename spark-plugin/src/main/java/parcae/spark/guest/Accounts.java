package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongPredicate;
import java.util.function.ToDoubleFunction;

/**
 * The accounts of the users: what each has received, and what a split of the cores by weight would
 * have given it since it was last idle.
 *
 * <p>What a user received is measured by the launch and end times that Spark's driver gives a task,
 * for every copy of every task, however it ends; a delay of the events changes nothing. Those times
 * are of the wall clock, the split is of the planner's. Only one thread may use it at a time.
 */
final class Accounts {
  /** Below this difference, in ms of a core, an account is even. */
  private static final double EVEN_MS = 1e-3;
  /** So many tasks whose ends were lost are remembered, since an end may be late. */
  private static final int MAX_LOST = 10_000;

  private final Map<String, Account> byUser = new HashMap<>();
  private final List<Account> asking = new ArrayList<>(); // in the split that is being made
  private final Map<Long, Held> held = new HashMap<>(); // by task
  private Set<Long> missing = new HashSet<>(); // tasks that did not run at the last check
  private final Map<Long, Boolean> lost = new LinkedHashMap<>() {
    @Override
    protected boolean removeEldestEntry(Map.Entry<Long, Boolean> eldest) {
      return size() > MAX_LOST;
    }
  };
  private final ToDoubleFunction<String> weightOf;
  private long clockMs;
  private long originMs; // launch times count from here, so that their sums stay exact

  private int numUsers;

  /** Begins now, without any account; a user's weight may change at any time. */
  Accounts(ToDoubleFunction<String> weightOf, long nowMs) {
    this.weightOf = weightOf;
    clockMs = nowMs;
  }

  /** One user's account, in ms of a core. */
  static final class Account {
    final String user;
    private int queries; // that are open
    private double waiting; // cores that its tasks could take now
    private double running; // cores that it holds
    private double startSumMs; // of the launch times of the held cores
    private double doneMs; // received by tasks that have ended
    private double receivedMs; // at the clock
    private double splitMs;
    // The split that is being made.
    private double weight;
    private double most;
    private double rate;

    private Account(String user) {
      this.user = user;
    }

    /** What the user's tasks have received. */
    double receivedMs() {
      return receivedMs;
    }

    /** What the split would have given. */
    double splitMs() {
      return splitMs;
    }

    /** What the user has taken beyond its share; negative: what it is owed. */
    double overdraftMs() {
      return receivedMs - splitMs;
    }

    /** The cores that the user's tasks hold. */
    double running() {
      return running;
    }

    /** Sets how many more cores the user's waiting tasks could take than before. */
    void waits(double moreCores) {
      waiting += moreCores;
    }

    private boolean isBehind() {
      return splitMs < receivedMs - EVEN_MS;
    }
  }

  /** The cores of a task that runs. */
  private static final class Held {
    final Account account;
    final double cores;
    final long launchMs;

    Held(Account account, double cores, long launchMs) {
      this.account = account;
      this.cores = cores;
      this.launchMs = launchMs;
    }
  }

  /** A query of a user opens; needs `advance` before. */
  Account opened(String user) {
    Account account = byUser.computeIfAbsent(user, Account::new);
    numUsers += account.queries++ == 0 ? 1 : 0;
    return account;
  }

  /** A query of the user has ended. */
  void ended(Account account) {
    numUsers -= --account.queries == 0 ? 1 : 0;
  }

  /** A task of the user, or a copy of one, holds cores since this time of the wall clock. */
  void held(long task, Account account, double cores, long launchMs) {
    if (originMs == 0) {
      originMs = launchMs;
    }
    if (held.putIfAbsent(task, new Held(account, cores, launchMs - originMs)) == null) {
      account.running += cores;
      account.startSumMs += cores * (launchMs - originMs);
    }
  }

  /** A task has given its cores back; `account` pays if its start was lost, and may be null. */
  void released(long task, Account account, double cores, long launchMs, long endMs) {
    Held entry = held.remove(task);
    missing.remove(task);
    if (entry != null) {
      release(entry, endMs - originMs);
    } else if (account != null && lost.remove(task) == null) {
      account.doneMs += cores * Math.max(0, endMs - launchMs);
    }
  }

  private static void release(Held entry, long endMs) {
    entry.account.running -= entry.cores;
    entry.account.startSumMs -= entry.cores * entry.launchMs;
    entry.account.doneMs += entry.cores * Math.max(0, endMs - entry.launchMs);
  }

  /** Releases the tasks that did not run at two checks in a row: their ends were lost. */
  void keep(LongPredicate isRunning, long wallMs) {
    Set<Long> missingNow = new HashSet<>();
    for (Iterator<Map.Entry<Long, Held>> all = held.entrySet().iterator(); all.hasNext(); ) {
      Map.Entry<Long, Held> each = all.next();
      if (isRunning.test(each.getKey())) {
        continue;
      }
      if (missing.contains(each.getKey())) {
        all.remove();
        lost.put(each.getKey(), true);
        release(each.getValue(), wallMs - originMs);
      } else {
        missingNow.add(each.getKey());
      }
    }
    missing = missingNow;
  }

  /** How many users have an open query. */
  int numUsers() {
    return numUsers;
  }

  /** The account of a user; null if there is none. */
  Account find(String user) {
    return byUser.get(user);
  }

  /** The accounts, also of users whose queries have ended. */
  Collection<Account> all() {
    return byUser.values();
  }

  /**
   * Brings the accounts up to the present, by what ran and waited since the last call. It must be
   * called before every change.
   *
   * @param nowMs the present of the planner's clock
   * @param wallMs the present of the clock of launch times
   * @param cores the cores of the application
   */
  void advance(long nowMs, long wallMs, int cores) {
    double passedMs = nowMs - clockMs;
    clockMs = nowMs;
    if (passedMs <= 0) {
      return;
    }
    double running = 0;
    double waiting = 0;
    for (Iterator<Account> all = byUser.values().iterator(); all.hasNext(); ) {
      Account account = all.next();
      double heldMs = account.running * (wallMs - originMs) - account.startSumMs;
      // When the state began; it grows to the measured amount.
      account.receivedMs = account.doneMs + Math.max(0, heldMs) - account.running * passedMs;
      account.weight = weightOf.applyAsDouble(account.user);
      running += account.running;
      waiting += account.waiting;
      if (account.queries == 0 && account.running == 0 && !account.isBehind()) {
        all.remove();
      }
    }
    // A core that is idle while tasks wait was taken by nobody, and is owed to nobody.
    double shared = waiting > 0 ? running : Math.max(cores, running);
    while (passedMs > 0) {
      split(shared);
      double stepMs = passedMs;
      for (Account account : byUser.values()) {
        stepMs = Math.min(stepMs, untilEvenMs(account));
      }
      for (Account account : byUser.values()) {
        boolean isEven = untilEvenMs(account) <= stepMs;
        account.receivedMs += account.running * stepMs;
        account.splitMs =
            isEven ? account.receivedMs : account.splitMs + account.rate * stepMs;
      }
      passedMs -= stepMs;
    }
  }

  /** The time until the split has caught up with what the user received. */
  private static double untilEvenMs(Account account) {
    return account.isBehind() && account.rate > account.running
        ? account.overdraftMs() / (account.rate - account.running)
        : Double.POSITIVE_INFINITY;
  }

  /** Splits cores by weight; none gets more than it asks for, and who is behind asks for all. */
  private void split(double cores) {
    asking.clear();
    double weights = 0;
    for (Account account : byUser.values()) {
      account.most = account.isBehind()
          ? Double.POSITIVE_INFINITY
          : account.running + account.waiting;
      weights += account.weight;
      asking.add(account);
    }
    double left = cores;
    boolean isSettled = false;
    while (!isSettled) {
      double level = weights > 0 ? left / weights : 0;
      isSettled = true;
      for (int i = asking.size() - 1; i >= 0; i--) {
        Account account = asking.get(i);
        account.rate = level * account.weight;
        if (account.most <= account.rate) {
          account.rate = account.most;
          left -= account.most;
          weights -= account.weight;
          asking.set(i, asking.get(asking.size() - 1));
          asking.remove(asking.size() - 1);
          isSettled = false;
        }
      }
    }
  }
}
