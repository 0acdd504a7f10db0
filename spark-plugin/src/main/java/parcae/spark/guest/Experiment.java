package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Iterator;
import java.util.Objects;
import java.util.TreeSet;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.scheduler.SparkListenerEvent;
import parcae.spark.ExperimentEvent;

/**
 * A randomised experiment: in some blocks of time the policy's order applies, in the others Spark's
 * own.
 *
 * <p>Blocks are counted from 1970, so that a restarted driver goes on with the same schedule. Of
 * each pair of blocks one is the policy's; a hash of the seed and the pair says which. Spark's
 * event log gets an event when a block begins, and when the experiment ends.
 */
final class Experiment {
  private static final String BLOCK = "block";
  private static final String WASHOUT = "washout";
  private static final String SEED = "seed";
  private static final Pattern DURATION = Pattern.compile("([0-9]{1,6})(ms|s|m|h)");
  private static final long MIN_BLOCK_MS = 1_000;
  /** The washout, unless it is set, is the block divided by this. */
  private static final long WASHOUTS = 10;
  /** How often the thread looks whether the plugin still works. */
  private static final long CHECK_MS = 1_000;

  private final long blockMs;
  private final long washoutMs;
  private final long seed;

  Experiment(long blockMs, long washoutMs, long seed) {
    this.blockMs = blockMs;
    this.washoutMs = washoutMs;
    this.seed = seed;
  }

  /**
   * Reads the field of a control file.
   *
   * @param node the value of the field
   * @param where the field's name for error messages
   * @throws PolicyException a value is missing or wrong
   */
  static Experiment of(JsonNode node, String where) throws PolicyException {
    if (!node.isObject()) {
      throw new PolicyException(where + " is no JSON object; write {\"block\": \"10m\"}");
    }
    TreeSet<String> unknown = new TreeSet<>();
    for (Iterator<String> names = node.fieldNames(); names.hasNext(); ) {
      unknown.add(names.next());
    }
    for (String known : new String[] {BLOCK, WASHOUT, SEED}) {
      unknown.remove(known);
    }
    if (!unknown.isEmpty()) {
      throw new PolicyException(where + " has unknown fields (" + String.join(", ", unknown)
          + "); known are " + BLOCK + ", " + WASHOUT + " and " + SEED);
    }
    long block = milliseconds(node, BLOCK, where);
    if (block < MIN_BLOCK_MS) {
      throw new PolicyException(where + "." + BLOCK + " is shorter than 1s");
    }
    long washout = node.has(WASHOUT) ? milliseconds(node, WASHOUT, where) : block / WASHOUTS;
    if (washout > block / 2) {
      throw new PolicyException(where + "." + WASHOUT + " is longer than half a block");
    }
    JsonNode seed = node.path(SEED);
    if (node.has(SEED) && !(seed.isIntegralNumber() && seed.canConvertToLong())) {
      throw new PolicyException(where + "." + SEED + " is " + seed + "; set it to a whole number");
    }
    return new Experiment(block, washout, seed.asLong());
  }

  private static long milliseconds(JsonNode node, String name, String where)
      throws PolicyException {
    String text = node.path(name).asText();
    Matcher match = DURATION.matcher(text);
    if (!match.matches()) {
      throw new PolicyException(
          where + "." + name + " is \"" + text + "\"; set it to a time such as 10m or 90s");
    }
    long unit = 1;
    switch (match.group(2)) {
      case "h":
        unit = 3_600_000;
        break;
      case "m":
        unit = 60_000;
        break;
      case "s":
        unit = 1_000;
        break;
      default:
    }
    return Long.parseLong(match.group(1)) * unit;
  }

  /** The block of a time. */
  long blockOf(long timeMs) {
    return Math.floorDiv(timeMs, blockMs);
  }

  /** Whether the policy's order applies in a block. */
  boolean isPolicy(long block) {
    return ((random(seed, Math.floorDiv(block, 2)) ^ block) & 1) == 0;
  }

  /** Output `index`, from 0, of the generator SplitMix64 (Steele, Lea and Flood, 2014). */
  static long random(long seed, long index) {
    long mixed = seed + (index + 1) * 0x9e3779b97f4a7c15L;
    mixed = (mixed ^ (mixed >>> 30)) * 0xbf58476d1ce4e5b9L;
    mixed = (mixed ^ (mixed >>> 27)) * 0x94d049bb133111ebL;
    return mixed ^ (mixed >>> 31);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Experiment && toString().equals(other.toString());
  }

  @Override
  public int hashCode() {
    return Objects.hash(blockMs, washoutMs, seed);
  }

  @Override
  public String toString() {
    return String.format(
        "blocks of %d ms, %d ms of washout, seed %d", blockMs, washoutMs, seed);
  }

  /** The experiment while it runs, on a thread of its own. */
  final class Running {
    private final BooleanSupplier isWorking;
    private final Consumer<Boolean> handler;
    private final Consumer<SparkListenerEvent> log;
    private boolean isEnded;

    /**
     * Begins.
     *
     * @param isWorking whether the plugin still can apply an order
     * @param handler gets whether the policy's order applies, when a block begins
     * @param log takes the events for Spark's event log
     */
    Running(
        BooleanSupplier isWorking, Consumer<Boolean> handler, Consumer<SparkListenerEvent> log) {
      this.isWorking = isWorking;
      this.handler = handler;
      this.log = log;
      Thread thread = new Thread(this::followBlocks, "parcae-experiment");
      thread.setDaemon(true);
      thread.start();
    }

    private synchronized void followBlocks() {
      try {
        long last = Long.MIN_VALUE;
        while (!isEnded) {
          long nowMs = System.currentTimeMillis();
          long block = blockOf(nowMs);
          if (!isWorking.getAsBoolean()) {
            end();
          } else if (block != last) {
            last = block;
            handler.accept(isPolicy(block));
            write(nowMs, isPolicy(block) ? ExperimentEvent.POLICY : ExperimentEvent.STOCK);
          } else {
            wait(Math.min(CHECK_MS, (block + 1) * blockMs - nowMs));
          }
        }
      } catch (InterruptedException error) {
        end();
      }
    }

    /** Ends the experiment; then the mode alone says which order applies. */
    synchronized void end() {
      if (!isEnded) {
        isEnded = true;
        handler.accept(true);
        write(System.currentTimeMillis(), ExperimentEvent.NONE);
        notifyAll();
      }
    }

    private void write(long nowMs, String arm) {
      log.accept(new ExperimentEvent(nowMs, blockOf(nowMs), arm, blockMs, washoutMs, seed));
    }
  }
}
