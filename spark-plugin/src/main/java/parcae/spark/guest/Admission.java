package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
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
  /** Never binds. */
  static final int UNLIMITED = Integer.MAX_VALUE;
  /** The field of the control file. */
  static final String FIELD = "maxOpen";
  private static final long PAUSE_NS = TimeUnit.SECONDS.toNanos(1);
  private static final long CHECK_MS = 1_100;

  private final Runnable offerAgain;
  private final Map<String, Long> open = new HashMap<>(); // when it last had a task set
  private Set<String> held = new HashSet<>();
  private int most = UNLIMITED;
  private Timer timer;
  private boolean isTimed;

  /** Takes what makes Spark offer its idle cores. */
  Admission(Runnable offerAgain) {
    this.offerAgain = offerAgain;
  }

  /**
   * Reads the limit in a control file; UNLIMITED if it has none.
   *
   * @throws PolicyException it is no whole number of at least 1
   */
  static int read(JsonNode root, String where) throws PolicyException {
    JsonNode value = root.path(FIELD);
    if (value.isMissingNode() || value.isNull()) {
      return UNLIMITED;
    }
    if (!value.isInt() || value.asInt() < 1) {
      throw new PolicyException(
          where + FIELD + " is " + value + "; set it to how many queries may be open at once, a"
              + " whole number from 1 on, or leave it out");
    }
    return value.asInt();
  }

  /** Sets how many queries may be open at once. */
  synchronized void limit(int newMost) {
    most = newMost;
    if (newMost == UNLIMITED) {
      open.clear();
      held = new HashSet<>();
    }
  }

  /** Whether there is a limit. */
  synchronized boolean isLimited() {
    return most != UNLIMITED;
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
        open.put(key, nowNs);
      }
    }
    open.values().removeIf(lastNs -> nowNs - lastNs > PAUSE_NS);
    List<TaskSetManager> admitted = new ArrayList<>();
    Set<String> nowHeld = new HashSet<>();
    for (TaskSetManager manager : sorted) {
      String key = Queue.keyOf(manager);
      if (open.containsKey(key) || open.size() < most) {
        open.put(key, nowNs);
        admitted.add(manager);
      } else {
        nowHeld.add(key);
      }
    }
    held = nowHeld;
    if (!nowHeld.isEmpty()) {
      checkLater();
    }
    return admitted;
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
    return held.contains(key) ? "held back: " + open.size() + " open, maxOpen " + most : "";
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
