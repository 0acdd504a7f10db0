package parcae.spark.guest;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import parcae.spark.Check;

/** Modes of a control file in a folder (the argument), which is replaced while it is read. */
final class ControlTest {
  private static final LinkedBlockingQueue<String> HEARD = new LinkedBlockingQueue<>();

  private static final Weights WEIGHTS = new Weights();

  private static SparkConf settings(Object file, String mode) {
    return new SparkConf(false)
        .set("spark.parcae.control", file.toString())
        .set("spark.parcae.mode", mode)
        .set("spark.parcae.controlMs", "100");
  }

  private static String heard() throws InterruptedException {
    return HEARD.poll(30, TimeUnit.SECONDS);
  }

  private static void write(Path file, String text) throws Exception {
    Path made = Files.writeString(file.resolveSibling("made"), text);
    Files.move(made, file, java.nio.file.StandardCopyOption.ATOMIC_MOVE);
  }

  @Test
  void aFileThatComesChangesAndIsTorn(@TempDir Path folder) throws Exception {
    Path file = folder.resolve("control file.json");
    Control control = new Control(settings(file, "observe"), new Configuration(), WEIGHTS)
        .limiting(most -> HEARD.add("at most " + most));
    control.start((mode, experiment, source) -> HEARD.add(
        mode + " by " + source + (experiment == null ? "" : ": " + experiment)));
    Check.same(heard(), "OBSERVE by spark.parcae.mode", "the setting");
    write(file, "{\"mode\": \"on\"}");
    Check.same(heard(), "ON by " + file, "the file");
    for (String wrong : new String[] {
        "{\"mode\": \"of", "[]", "{\"mode\": \"On\"}", "{\"mod\": \"off\"}", "",
        "{\"experiment\": {\"block\": \"10\"}}",
        "{\"maxOpen\": 0}", "{\"maxOpen\": \"8\"}", "{\"maxOpen\": 1.5, \"mode\": \"off\"}",
        "{\"weights\": 2, \"mode\": \"off\"}",
        "{\"weights\": {\"etl\": 0}, \"mode\": \"off\"}"}) {
      write(file, wrong);
      Check.that(HEARD.poll(300, TimeUnit.MILLISECONDS) == null, "changes nothing: " + wrong);
    }
    write(file, "{\"mode\": \"off\", \"weights\": {\"etl\": 2.5}}");
    Check.same(heard(), "OFF by " + file, "the file is right again");
    Check.same(WEIGHTS.applyAsDouble("etl"), 2.5, "the weight of a user");
    Check.same(WEIGHTS.applyAsDouble("ann"), 1.0, "that of another");
    String tried = "{\"mode\": \"off\", \"experiment\": {\"block\": \"1m\"}}";
    write(file, tried);
    String words = ": blocks of 60000 ms, 6000 ms of washout, seed 0";
    Check.same(heard(), "OFF by " + file + words, "an experiment");
    write(file, tried + " ");
    Check.that(HEARD.poll(300, TimeUnit.MILLISECONDS) == null, "the same in other words");
    write(file, "{\"mode\": \"off\"}");
    Check.same(heard(), "OFF by " + file, "no experiment");
    write(file, "{\"mode\": \"off\", \"maxOpen\": 8}");
    Check.same(heard(), "at most 8", "a limit of open queries");
    write(file, "{\"mode\": \"off\", \"maxOpen\": 8, \"maxOpenPerUser\": 2}");
    Check.same(heard(), "at most 8, 2 of a user", "a limit of one user's");
    write(file, "{\"mode\": \"off\"}");
    Check.same(heard(), "at most any number", "no limit");
    write(file, "{}");
    Check.same(heard(), "OBSERVE by " + file, "without a mode, that of the setting");
    Files.delete(file);
    Check.that(HEARD.poll(300, TimeUnit.MILLISECONDS) == null, "a file that is gone");
    control.stop();
  }

  @Test
  void addressesOfHadoop(@TempDir Path folder) throws Exception {
    Control control = new Control(
        settings("file:" + folder + "/h", "on"), new Configuration(), WEIGHTS);
    control.start((mode, experiment, source) -> HEARD.add(mode.name()));
    Check.same(heard(), "ON", "the setting");
    write(folder.resolve("h"), "{\"mode\": \"off\"}");
    Check.same(heard(), "OFF", "the file");
    control.stop();
  }

  @Test
  void wrongSettings() throws Exception {
    try {
      new Control(settings("", "no"), new Configuration(), WEIGHTS);
      throw new AssertionError("was not refused");
    } catch (PolicyException error) {
      Check.that(error.getMessage().contains("spark.parcae.mode is \"no\""), error.getMessage());
    }
  }
}
