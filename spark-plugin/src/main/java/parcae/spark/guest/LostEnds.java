package parcae.spark.guest;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongPredicate;

/**
 * Finds jobs or SQL executions whose end event was lost: Spark drops events that come faster than
 * listeners read them.
 *
 * <p>An id that is not running at two checks in a row has ended. One check is not enough, since the
 * end event may still be on its way. Only one thread may use this at a time.
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

  /** The id has sent an event: it is not missing. */
  void seen(long id) {
    missing.remove(id);
  }

  /** The ids that are missing for the second time; they count as ended from now on. */
  List<Long> findLost(LongPredicate isRunning) {
    List<Long> lost = new ArrayList<>();
    Set<Long> missingNow = new HashSet<>();
    for (long id : open) {
      if (!isRunning.test(id)) {
        (missing.contains(id) ? lost : missingNow).add(id);
      }
    }
    lost.forEach(open::remove);
    missing = missingNow;
    return lost;
  }
}
