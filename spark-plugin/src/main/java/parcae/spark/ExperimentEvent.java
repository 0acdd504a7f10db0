package parcae.spark;

import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.spark.scheduler.SparkListenerEvent;

/**
 * What Spark's event log says of an experiment: from a time on, the order of this arm applies.
 *
 * <p>Spark writes the fields as JSON by itself. A history server that lacks the class skips the
 * line; one that has it reads it, and therefore no field is final.
 */
public final class ExperimentEvent implements SparkListenerEvent {
  /** The arm of the policy's order. */
  public static final String POLICY = "policy";
  /** The arm of Spark's own order. */
  public static final String STOCK = "stock";
  /** The experiment has ended; the mode says which order applies. */
  public static final String NONE = "none";

  @JsonProperty private long time;
  @JsonProperty private long block;
  @JsonProperty private String arm = NONE;
  @JsonProperty private long blockMs;
  @JsonProperty private long washoutMs;
  @JsonProperty private long seed;

  /** Creates an event that a reader of JSON fills. */
  public ExperimentEvent() {}

  /** Creates an event of this time, in ms since 1970 as is the number of the block in blocks. */
  public ExperimentEvent(
      long time, long block, String arm, long blockMs, long washoutMs, long seed) {
    this.time = time;
    this.block = block;
    this.arm = arm;
    this.blockMs = blockMs;
    this.washoutMs = washoutMs;
    this.seed = seed;
  }
}
