package parcae.spark.guest;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A stage of an open job, as the service knows it when it has received all events so far.
 *
 * <p>It belongs to one {@link Picture}, which reads and changes it under its lock.
 */
final class SentStage {
  final int id;
  final List<Integer> parents;
  int tasks;
  int attempt;
  int started;
  int finished;
  long executedMs;
  boolean isSubmitted;
  boolean isEnded;

  SentStage(int id, int tasks, List<Integer> parents) {
    this.id = id;
    this.tasks = tasks;
    this.parents = parents;
  }

  /** The stage as a part of a message, with those of its parents that the service knows. */
  Map<String, Object> described(Collection<Integer> known) {
    Map<String, Object> fields = new LinkedHashMap<>();
    fields.put("stage_id", id);
    fields.put("tasks", tasks);
    List<Integer> sent = new ArrayList<>(parents);
    sent.retainAll(known);
    if (!sent.isEmpty()) {
      fields.put("parents", sent);
    }
    if (started > 0) {
      fields.put("started", started);
      fields.put("finished", finished);
      fields.put("executed_ms", executedMs);
    }
    if (isEnded) {
      fields.put("is_ended", true);
    }
    return fields;
  }
}
