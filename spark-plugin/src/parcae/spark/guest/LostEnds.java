package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongPredicate;

/**
 * Jobs and SQL executions that have ended unheard: where events come faster than they are read,
 * Spark drops some. What is missing at two looks in a row has ended. One thread at a time.
 */
final class LostEnds {
  private final Set<Long> open = new HashSet<>();
  private Set<Long> missing = new HashSet<>();

  void started(long id) {
    open.add(id);
  }

  void ended(long id) {
    open.remove(id);
    missing.remove(id);
  }

  /** Those that were missing last time and are still; they count as ended from now on. */
  List<Long> look(LongPredicate isRunning) {
    List<Long> lost = new ArrayList<>();
    Set<Long> now = new HashSet<>();
    for (long id : open) {
      if (!isRunning.test(id)) {
        (missing.contains(id) ? lost : now).add(id);
      }
    }
    lost.forEach(open::remove);
    missing = now;
    return lost;
  }
}
