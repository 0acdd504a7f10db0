package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import org.apache.spark.scheduler.TaskSetManager;

/**
 * Holds back the first tasks of further queries while as many queries as are allowed are open. What
 * has begun is never held back, so whoever counts as open can go on.
 *
 * <p>A query is open from its first task to the end of its SQL execution or job. One that has had
 * no task set for a second does not count: its client may keep it open for hours.
 */
final class Admission {
  private static final long PAUSE_NS = TimeUnit.SECONDS.toNanos(1);
  private static final long CHECK_MS = 1_100;

  private final Runnable offerAgain;
  private final Persons persons;
  private final Map<String, Open> open = new HashMap<>();
  private Map<String, String> held = new HashMap<>(); // and why
  private Limits limits = Limits.NONE;
  private Timer timer;
  private boolean isTimed;

  /** Takes what makes Spark offer its idle cores, and who runs jobs. */
  Admission(Runnable offerAgain, Persons persons) {
    this.offerAgain = offerAgain;
    this.persons = persons;
  }

  /** An open query. */
  private static final class Open {
    final String user; // empty: not known
    long lastNs; // when it last had a task set

    Open(String user) {
      this.user = user;
    }
  }

  /** How many queries may be open at once, and how many of one user. */
  static final class Limits {
    /** Any number of queries. */
    static final Limits NONE = new Limits(Integer.MAX_VALUE, Integer.MAX_VALUE);
    /** The fields of the control file. */
    static final String ALL = "maxOpen";
    static final String USER = "maxOpenPerUser";

    private final int all;
    private final int user;

    private Limits(int all, int user) {
      this.all = all;
      this.user = user;
    }

    /**
     * Reads the limits in a control file.
     *
     * @throws PolicyException one is no whole number of at least 1
     */
    static Limits read(JsonNode root, String where) throws PolicyException {
      return new Limits(limit(root, ALL, where), limit(root, USER, where));
    }

    private static int limit(JsonNode root, String field, String where) throws PolicyException {
      JsonNode value = root.path(field);
      if (value.isMissingNode() || value.isNull()) {
        return Integer.MAX_VALUE;
      }
      if (!value.isInt() || value.asInt() < 1) {
        throw new PolicyException(
            where + field + " is " + value + "; set it to how many queries may be open at once, a"
                + " whole number from 1 on, or leave it out");
      }
      return value.asInt();
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Limits
          && ((Limits) other).all == all && ((Limits) other).user == user;
    }

    @Override
    public int hashCode() {
      return 31 * all + user;
    }

    @Override
    public String toString() {
      return (all == Integer.MAX_VALUE ? "any number" : String.valueOf(all))
          + (user == Integer.MAX_VALUE ? "" : ", " + user + " of a user");
    }
  }

  /** Sets how many queries may be open at once. */
  synchronized void limit(Limits newLimits) {
    limits = newLimits;
    if (!isLimited()) {
      open.clear();
      held = new HashMap<>();
    }
  }

  /** Whether there is a limit. */
  synchronized boolean isLimited() {
    return !limits.equals(Limits.NONE);
  }

  /**
   * The task sets that may start tasks, in the same order.
   *
   * @param sorted the task sets with a task to start, first served first
   * @param all all task sets
   */
  synchronized List<TaskSetManager> admit(List<TaskSetManager> sorted, List<TaskSetManager> all) {
    long nowNs = System.nanoTime();
    for (TaskSetManager manager : all) {
      String key = Queue.keyOf(manager);
      boolean hasBegun = manager.runningTasks() > 0 || manager.tasksSuccessful() > 0;
      if (hasBegun || open.containsKey(key)) {
        opened(key, manager).lastNs = nowNs;
      }
    }
    open.values().removeIf(query -> nowNs - query.lastNs > PAUSE_NS);
    List<TaskSetManager> admitted = new ArrayList<>();
    Map<String, String> nowHeld = new HashMap<>();
    for (TaskSetManager manager : sorted) {
      String key = Queue.keyOf(manager);
      String reason = open.containsKey(key) ? "" : full(manager);
      if (reason.isEmpty()) {
        opened(key, manager).lastNs = nowNs;
        admitted.add(manager);
      } else {
        nowHeld.put(key, reason);
      }
    }
    held = nowHeld;
    if (!nowHeld.isEmpty()) {
      checkLater();
    }
    return admitted;
  }

  private Open opened(String key, TaskSetManager manager) {
    return open.computeIfAbsent(
        key, any -> new Open(persons.of(manager.taskSet().properties())));
  }

  /** Why no query like this one may open now; empty if one may. */
  private String full(TaskSetManager manager) {
    if (open.size() >= limits.all) {
      return "held back: " + open.size() + " open, " + Limits.ALL + " " + limits.all;
    }
    String user = persons.of(manager.taskSet().properties());
    long own = open.values().stream().filter(query -> query.user.equals(user)).count();
    return user.isEmpty() || own < limits.user
        ? ""
        : "held back: " + own + " of this person open, " + Limits.USER + " " + limits.user;
  }

  /** Looks again in a second: no event says that an open query has had no task set for so long. */
  private void checkLater() {
    if (isTimed) {
      return;
    }
    isTimed = true;
    if (timer == null) {
      timer = new Timer("parcae-admission", true);
    }
    timer.schedule(new TimerTask() {
      @Override
      public void run() {
        synchronized (Admission.this) {
          isTimed = false;
        }
        offerAgain.run();
      }
    }, CHECK_MS);
  }

  /** A query has ended; the next one may begin. */
  void ended(String key) {
    boolean isAwaited;
    synchronized (this) {
      isAwaited = open.remove(key) != null && !held.isEmpty();
    }
    if (isAwaited) {
      offerAgain.run();
    }
  }

  /** How many queries are held back. */
  synchronized int numHeld() {
    return held.size();
  }

  /** Why a query is held back; empty if it is not. */
  synchronized String reason(String key) {
    return held.getOrDefault(key, "");
  }

  /** Ends the thread. */
  synchronized void stop() {
    if (timer != null) {
      timer.cancel();
      timer = null;
      isTimed = true; // no other one
    }
  }
}
