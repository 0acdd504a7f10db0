package parcae.spark.guest;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import parcae.spark.Check;

/**
 * The file of what was learned: drivers that share it, and files that are wrong. The arguments are
 * an empty folder, a file that Python wrote, and a name in it with its median work.
 */
final class StateTest {
  private static final Profile STAGES = new Profile(List.of(
      new Profile.Stage(2, 10, List.of()), new Profile.Stage(1, 5, List.of(0))));

  private StateTest() {}

  private static State state(String file, Learned learned) throws PolicyException {
    return new State(new SparkConf(false).set(State.FILE, file), new Configuration(), learned);
  }

  private static void learn(Learned learned, String name, int atMs, double workMs) {
    learned.observe(name, STAGES, new Learned.Run(atMs, 1e6, workMs));
  }

  private static void sharedBy(String file, Path folder) throws Exception {
    Learned one = new Learned();
    Learned other = new Learned();
    learn(one, "a", 1, 100);
    learn(one, "b", 2, 30);
    learn(other, "a", 3, 300);
    state(file, one).save();
    state(file, other).save();
    state(file, one).save();
    for (Learned learned : List.of(one, other)) {
      Check.same(learned.find("a", 0).workMs, 200.0, "the runs of both drivers");
      Check.same(learned.find("b", 0).workMs, 30.0, "a name of one of them");
    }
    Learned third = new Learned();
    state(file, third).save();
    Check.same(third.find("a", 0).workMs, 200.0, "what a later driver reads");
    new SharedFile(file, new Configuration()).claim();
    state(file, third).save();
    Check.same(third.find("a", 0).stages.get(1).parents, List.of(0), "the stages");
    try (Stream<Path> files = Files.list(folder)) {
      boolean remains = files.anyMatch(each -> each.toString().matches(".*(tmp|lock)"));
      Check.that(!remains, "no file remains");
    }
  }

  private static void atOnce(String file) throws Exception {
    Thread[] drivers = new Thread[4];
    for (int i = 0; i < drivers.length; i++) {
      Learned learned = new Learned();
      learn(learned, "driver " + i, i, 10);
      State state = state(file, learned);
      state.start();
      drivers[i] = new Thread(state::stop);
    }
    for (Thread driver : drivers) {
      driver.start();
    }
    for (Thread driver : drivers) {
      driver.join();
    }
    Learned all = new Learned();
    state(file, all).save();
    int found = 0;
    for (int i = 0; i < drivers.length; i++) {
      found += all.find("driver " + i, 0) == null ? 0 : 1;
    }
    Check.same(found, drivers.length, "drivers that ended at once");
  }

  private static void wrong(Path file) throws Exception {
    String start = "{\"format\":\"parcae-state\",\"version\":1,\"queries\":{\"a\":";
    String stages = "\"stages\":[{\"tasks\":1,\"task_ms\":1,\"parents\":[]}]";
    for (String text : List.of(
        "{", "[]", "{\"format\":\"parcae-state\",\"version\":2}", start + "{}}}",
        start + "{\"runs\":[[1,-1,1]]," + stages + "}}}",
        start + "{\"runs\":[[1,1,\"x\"]]," + stages + "}}}",
        start + "{\"runs\":[[1,1,1]],\"stages\":[{\"tasks\":1,\"task_ms\":1,\"parents\":[0]}]}}}",
        start + "{\"runs\":[[1,1,1e999]]," + stages + "}}}")) {
      Files.writeString(file, text);
      Learned learned = new Learned();
      learn(learned, "own", 1, 10);
      state(file.toString(), learned).save();
      Check.same(Files.readString(file), text, "a file that is wrong stays");
      Check.same(learned.find("a", 0), null, "what a wrong file says: " + text);
    }
  }

  private static void many(Path file) throws Exception {
    Learned learned = new Learned();
    for (int i = 0; i < 60_000; i++) {
      learn(learned, "query " + i, i, 10);
    }
    state(file.toString(), learned).save();
    long bytes = Files.size(file);
    Check.that(bytes < 4 << 20, "the file is bounded: " + bytes + " bytes");
    Learned read = new Learned();
    state(file.toString(), read).save();
    Check.that(read.find("query 59999", 0) != null, "the newest is kept");
    Check.same(read.find("query 1", 0), null, "the oldest is not");
  }

  private static void ofPython(String file, String name, double workMs) throws Exception {
    Learned learned = new Learned();
    state(file, learned).save();
    double found = learned.find(name, 0).workMs;
    Check.that(Math.abs(found / workMs - 1) < 1e-6, "found " + found + ", expected " + workMs);
    byte[] kept = Files.readAllBytes(Path.of(file));
    state(file, learned).save();
    Check.same(
        new String(Files.readAllBytes(Path.of(file)), StandardCharsets.UTF_8),
        new String(kept, StandardCharsets.UTF_8), "nothing new is not written again");
  }

  public static void main(String[] args) throws Exception {
    Path folder = Path.of(args[0]);
    String local = folder.resolve("a b.json").toString();
    Check.test("a shared file", () -> sharedBy(local, folder));
    String hadoop = folder.resolve("hadoop.json").toUri().toString();
    Check.test("a file of Hadoop's", () -> sharedBy(hadoop, folder));
    Check.test("drivers that end at once", () -> atOnce(folder.resolve("once.json").toString()));
    Check.test("files that are wrong", () -> wrong(folder.resolve("wrong.json")));
    Check.test("many queries", () -> many(folder.resolve("many.json")));
    Check.test("a file of Python's", () -> ofPython(args[1], args[2], Double.parseDouble(args[3])));
    Check.done();
  }
}
