package parcae.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** The books, step by step. */
final class BooksTest {
  private Books books = new Books();
  private long seq;

  public static void main(String[] args) throws Exception {
    Check.test("tasks run while slots are free, and only then", () -> new BooksTest().tokens());
    Check.test("Spark decides while nobody is obeyed", () -> new BooksTest().away());
    Check.test("a task keeps a slot of its stage when its own is taken away", () -> new BooksTest().swapped());
    Check.test("an end is told with a slot that surely works for the stage", () -> new BooksTest().untold());
    Check.test("copies hold no slot and count once", () -> new BooksTest().copies());
    Check.test("failures", () -> new BooksTest().failures());
    Check.test("stages that are submitted again", () -> new BooksTest().resubmitted());
    Check.test("output that got lost after its job", () -> new BooksTest().lostParent());
    Check.test("executors that come and go", () -> new BooksTest().executors());
    Check.test("jobs that end early", () -> new BooksTest().ended());
    Check.test("queries", () -> new BooksTest().queries());
    Check.test("stages that two jobs share", () -> new BooksTest().shared());
    Check.test("sync never tells of more tasks than there are", () -> new BooksTest().crowded());
    Check.test("order", () -> new BooksTest().order());
    Check.test("stalls", () -> new BooksTest().stalls());
    Check.test("nothing is kept while there is no service, nor of what is over", () -> new BooksTest().memory());
    Check.done();
  }

  // ---- words ----------------------------------------------------------------------------------------------------------

  static Books.StageShape stage(int id, int numTasks, Integer... parents) {
    return new Books.StageShape(id, numTasks, numTasks, true, Arrays.asList(parents));
  }

  static Books.JobShape job(int sparkJob, String key, String name, boolean isOpen, Books.StageShape... stages) {
    return new Books.JobShape(sparkJob, key, name, isOpen, Arrays.asList(stages));
  }

  /** Commands from "start SLOT STAGE", "idle SLOT"; tokens from "STAGE NUMBER". */
  static Wire.Commands commands(String[] commands, String... tokens) {
    Wire.Commands reply = new Wire.Commands(1);
    for (String text : commands) {
      String[] words = text.split(" ");
      int stage = words.length > 2 ? Integer.parseInt(words[2]) : -1;
      reply.commands.add(new Wire.Command(words[0], Integer.parseInt(words[1]), stage));
    }
    for (String text : tokens) {
      String[] words = text.split(" ");
      reply.stages.add(new Wire.StageSlots(Integer.parseInt(words[0]), Integer.parseInt(words[1])));
    }
    return reply;
  }

  private boolean obey(String[] commands, String... tokens) {
    return books.obey(commands(commands, tokens));
  }

  private static String[] say(String... commands) {
    return commands;
  }

  @SuppressWarnings("unchecked")
  private List<Map<String, Object>> list(Map<String, Object> message, String key) {
    return (List<Map<String, Object>>) (List<?>) (List<Object>) message.get(key);
  }

  /** "kind slot stage", whatever of these there is. */
  private List<String> told() {
    List<String> words = new ArrayList<>();
    for (Map<String, Object> event : books.takeEvents()) {
      words.add(event.get("kind") + (event.containsKey("slot") ? " " + event.get("slot") + " " + event.get("stage_id") : ""));
    }
    return words;
  }

  private Map<String, Object> sync() {
    Check.that(books.isDirty(), "sync is due");
    Map<String, Object> message = books.takeSync(++seq, 0);
    Check.that(!books.isDirty(), "sync was sent");
    return message;
  }

  private List<String> states(Map<String, Object> sync) {
    return list(sync, "slots").stream()
        .map(slot -> slot.get("slot") + (slot.containsKey("state") ? " " + slot.get("state") + " " + slot.get("stage_id") : ""))
        .collect(Collectors.toList());
  }

  private Map<String, Object> toldStage(Map<String, Object> sync, int id) {
    for (Map<String, Object> job : list(sync, "jobs")) {
      for (Map<String, Object> stage : list(job, "stages")) {
        if (stage.get("stage_id").equals(id)) {
          return stage;
        }
      }
    }
    throw new AssertionError("stage " + id + " was not told");
  }

  private int numFree(int stage, int most) {
    int count = 0;
    while (count < most && books.mayLaunch(stage, "")) {
      books.launched(stage, 1000 + count++, "");
    }
    return count;
  }

  /** Four slots, nothing else; the service is obeyed. */
  private void begin() {
    books.executorAdded("a", 4);
    sync();
    books.setObeying(true);
  }

  /** Stage 1 of eight tasks, then stage 2 of two. */
  private void beginJob() {
    begin();
    books.jobSeen(job(0, "job 0", "x", false, stage(1, 8), stage(2, 2, 1)), 5);
    books.submitted(1, 0, 8);
    Check.same(told(), List.of("job_arrived"), "the job");
  }

  // ---- tests ----------------------------------------------------------------------------------------------------------

  private void tokens() {
    beginJob();
    Check.that(!books.mayLaunch(1, ""), "nothing without a slot");
    Check.that(books.mayLaunch(99, ""), "a stage that nobody knows is Spark's");
    Check.that(obey(say("start 0 1", "start 1 1"), "1 2"), "tasks can be launched");
    books.launched(1, 0, "");
    books.launched(1, 1, "");
    Check.that(!books.mayLaunch(1, ""), "two slots, two tasks");
    books.succeeded(1, 0, "", 10);
    Check.same(told(), List.of("task_finished 0 1"), "an end");
    Check.that(books.mayLaunch(1, ""), "the slot goes on at once");
    books.launched(1, 2, "");
    Check.that(!books.mayLaunch(1, ""), "and is taken");
    Check.that(!obey(say(), "1 2"), "nothing new");
    Check.that(!books.isDirty(), "both sides agree");
    obey(say(), "1 3");
    Check.that(books.isDirty(), "both sides differ");
    Check.same(books.numGuided(), 3L, "launched with a slot");
  }

  private void away() {
    beginJob();
    books.setObeying(false);
    Check.that(books.mayLaunch(1, ""), "Spark decides");
    for (int task = 0; task < 4; task++) {
      books.launched(1, task, "");
    }
    Check.same(books.numUnguided(), 4L, "launched without");
    books.succeeded(1, 0, "", 10);
    Check.that(books.isDirty(), "the service knows nothing of it");
    Map<String, Object> sync = sync();
    Check.same(states(sync), List.of("0 running 1", "1 running 1", "2 running 1", "3"), "what runs");
    Check.same(toldStage(sync, 1).get("finished"), 1, "what is done");
    books.setObeying(true);
    obey(say("start 3 1"), "1 4");
    Check.that(!books.isDirty() && books.mayLaunch(1, ""), "guided again");
  }

  private void swapped() {
    beginJob();
    obey(say("start 0 1", "start 1 1"), "1 2");
    books.launched(1, 0, "");
    obey(say("idle 0"), "1 1");
    Check.that(!books.isDirty(), "the task took the other slot");
    Check.that(!books.mayLaunch(1, ""), "none is left");
    books.succeeded(1, 0, "", 10);
    Check.same(told(), List.of("task_finished 1 1"), "told with the slot that it has");
    obey(say("idle 1"), "1 0");
    Check.that(!books.isDirty(), "all agree");
    obey(say("start 2 1"), "1 1");
    books.launched(1, 3, "");
    obey(say("idle 2"), "1 0");
    Check.that(books.isDirty(), "a slot was taken from a running task, and there is no other");
  }

  private void untold() {
    beginJob();
    obey(say("start 0 1", "start 1 1"), "1 2");
    books.launched(1, 0, "");
    books.launched(1, 1, "");
    books.succeeded(1, 0, "", 10);
    Check.same(told(), List.of("task_finished 0 1"), "the first end, sent");
    books.launched(1, 2, ""); // on slot 0
    books.succeeded(1, 2, "", 10);
    Check.same(told(), List.of("task_finished 1 1"), "not with slot 0, which may have been taken away");
    books.launched(1, 3, "");
    books.succeeded(1, 3, "", 10);
    Check.same(told(), List.of(), "no slot is sure: the news waits");
    obey(say("idle 0"), "1 1");
    Check.same(told(), List.of("task_finished 1 1"), "slot 1 is sure now");
    Check.that(!books.isDirty(), "all agree");
  }

  private void copies() {
    beginJob();
    obey(say("start 0 1", "start 1 1"), "1 2");
    books.launched(1, 0, "");
    books.launched(1, 0, "");
    Check.that(books.mayLaunch(1, ""), "the copy took no slot");
    Check.that(books.succeeded(1, 0, "", 10), "the first counts");
    Check.that(!books.succeeded(1, 0, "", 12), "the second does not");
    Check.same(told().size(), 1, "told once");
    books.launched(1, 1, "");
    books.launched(1, 1, "");
    books.failed(1, 1, "", false);
    Check.same(told(), List.of(), "a copy still runs");
    books.succeeded(1, 1, "", 10);
    Check.same(told().size(), 1, "the copy counts");
    books.launched(1, 2, "");
    books.launched(1, 2, "");
    books.succeeded(1, 2, "", 5);
    told();
    books.failed(1, 2, "", false); // the loser is killed
    Check.same(told(), List.of(), "the loser is no news");
    Check.that(!books.isDirty(), "all agree");
  }

  private void failures() {
    beginJob();
    obey(say("start 0 1"), "1 1");
    books.launched(1, 0, "");
    books.failed(1, 0, "", false);
    Check.same(told(), List.of("task_failed 0 1"), "a failure");
    Check.that(books.mayLaunch(1, ""), "it is tried again on the same slot");
    books.launched(1, 0, "");
    books.succeeded(1, 0, "", 10);
    told();
    books.failed(1, 0, "", true);
    Check.that(books.isDirty(), "a result that got lost: the service believes the task done");
    Check.same(toldStage(sync(), 1).get("finished"), null, "nothing is done");
  }

  private void resubmitted() {
    beginJob();
    obey(say("start 0 1", "start 1 1"), "1 2");
    for (int task = 0; task < 8; task++) {
      books.launched(1, task, "");
      books.succeeded(1, task, "", 10);
      told();
      obey(say());
    }
    obey(say("start 0 2", "start 1 2"), "2 2", "1 0");
    books.submitted(2, 0, 2);
    books.launched(2, 0, "");
    books.launched(2, 1, "");
    Check.that(!books.isDirty(), "so far so good");
    books.failed(2, 0, "", false); // cannot fetch
    books.submitted(1, 1, 3); // three outputs are to be made again
    Map<String, Object> sync = sync();
    Check.same(toldStage(sync, 1).get("finished"), 5, "five outputs are there");
    Check.same(toldStage(sync, 2).get("finished"), null, "the child has not begun, as far as the service is concerned");
    Check.same(states(sync), List.of("0", "1", "2", "3"), "nor runs a task of its");
    obey(say("start 0 1", "start 1 1", "start 2 1"), "1 3");
    books.succeeded(2, 1, "", 10); // a task of the child's first attempt goes on
    Check.that(books.isDirty(), "it ran without a slot");
    sync();
    obey(say("start 0 1", "start 1 1", "start 2 1"), "1 3");
    for (int task = 0; task < 3; task++) {
      books.launched(1, task, "");
    }
    for (int task = 0; task < 3; task++) {
      books.succeeded(1, task, "", 10);
    }
    books.submitted(2, 1, 1);
    Check.same(toldStage(sync(), 2).get("finished"), 1, "the child goes on");
  }

  private void lostParent() {
    begin();
    books.jobSeen(job(0, "job 0", "x", false, stage(5, 4)), 5); // its parent, stage 4, was done by a job that is over
    books.submitted(5, 0, 4);
    obey(say("start 0 5"), "5 1");
    books.launched(5, 0, "");
    books.failed(5, 0, "", false);
    books.jobSeen(job(0, "job 0", "x", false, stage(4, 2), stage(5, 4, 4)), 9);
    books.submitted(4, 1, 2);
    Check.same(toldStage(sync(), 5).get("parents").toString(), "[4]", "the stage waits for what is made again");
    books.submitted(5, 1, 1);
    obey(say("start 0 5"), "5 1");
    sync();
    Books.StageShape lost = new Books.StageShape(4, 2, 1, false, List.of());
    books.launched(4, 0, "");
    books.launched(4, 1, "");
    books.succeeded(4, 0, "", 1);
    books.succeeded(4, 1, "", 1);
    sync();
    books.jobSeen(job(0, "job 0", "x", false, stage(4, 2), stage(5, 4, 4)), 9);
    Check.that(!books.isDirty(), "a stage that is being run may have outputs that Spark does not know of yet");
    books.jobSeen(job(0, "job 0", "x", false, lost, stage(5, 4, 4)), 9);
    Check.same(toldStage(sync(), 4).get("finished"), 1, "output that got lost before its stage is submitted again");
  }

  private void executors() {
    beginJob();
    obey(say("start 0 1", "start 1 1", "start 2 1"), "1 3");
    books.launched(1, 0, "");
    books.launched(1, 1, "");
    books.launched(1, 2, "");
    books.executorAdded("b", 1);
    Check.same(states(sync()).size(), 5, "more slots");
    obey(say(), "1 3");
    books.executorRemoved("a");
    books.failed(1, 0, "", false);
    books.failed(1, 1, "", false);
    books.failed(1, 2, "", false);
    Check.same(states(sync()), List.of("4"), "its slots went with it, and its tasks");
    books.executorRemoved("b");
    Check.that(!books.hasNews() && !books.hasSlots(), "without slots there is nobody to talk about");
    Check.that(books.stall() == Books.Stall.NONE, "and no stall");
  }

  private void ended() {
    beginJob();
    obey(say("start 0 1", "start 1 1"), "1 2");
    books.launched(1, 0, "");
    books.launched(1, 1, "");
    books.succeeded(1, 0, "", 1);
    told();
    books.launched(1, 2, "");
    books.succeeded(1, 2, "", 1);
    books.launched(1, 3, "");
    books.succeeded(1, 3, "", 1); // waits for a slot to be told with
    told();
    books.sparkJobEnded(0, List.of(1, 2), false);
    Check.same(told(), List.of("job_ended"), "the job is over");
    books.failed(1, 1, "", false);
    obey(say("idle 0", "idle 1"), "1 0");
    Check.that(!books.isDirty() && told().isEmpty(), "what is left of it is no news");
    Check.that(!books.knowsStage(1) && books.mayLaunch(1, ""), "and is Spark's");
  }

  private void queries() {
    begin();
    books.jobSeen(job(0, "query 7", "q", true, stage(1, 1)), 5);
    books.submitted(1, 0, 1);
    told();
    obey(say("start 0 1"), "1 1");
    books.launched(1, 0, "");
    books.succeeded(1, 0, "", 1);
    books.sparkJobEnded(0, List.of(1), true);
    Check.same(told(), List.of("task_finished 0 1"), "a Spark job's end is not the query's");
    obey(say("idle 0"), "1 0");
    books.jobSeen(job(1, "query 7", "q", true, stage(2, 2), stage(3, 1, 2)), 6);
    books.submitted(2, 0, 2);
    Check.same(told(), List.of("stages_added"), "one job");
    books.jobSeen(job(2, "query 7", "q", true, stage(4, 9)), 6);
    told();
    books.sparkJobEnded(2, List.of(4), false); // e.g. a broadcast that nobody waits for any more
    Check.that(books.isDirty(), "a stage less");
    Check.same(list(sync(), "jobs").get(0).get("stages").toString().contains("stage_id=4"), false, "of the same job");
    books.queryEnded("query 7", true);
    Check.same(told(), List.of("job_ended"), "the query's end");
    books.jobSeen(job(3, "query 7", "q", true, stage(5, 1)), 7);
    books.submitted(5, 0, 1);
    Map<String, Object> event = books.takeEvents().get(0);
    Check.that(!event.toString().contains("is_open"), "what comes after the query's end ends by itself");
  }

  private void shared() {
    begin();
    books.jobSeen(job(0, "job 0", "a", false, stage(1, 4), stage(2, 1, 1)), 5);
    Check.same(books.ownerOf(1), "job 0", "the first has it");
    books.jobSeen(job(1, "job 1", "b", false), 5); // waits for stage 1: nothing of its own yet
    told();
    books.sparkJobEnded(0, List.of(2), false);
    Check.same(told(), List.of("job_ended"), "the first job is over");
    Check.that(books.mayLaunch(1, ""), "the shared stage goes on as Spark's");
    books.launched(1, 0, "");
    books.succeeded(1, 0, "", 1);
    books.jobSeen(job(1, "job 1", "b", false, stage(3, 1)), 6);
    Check.same(told(), List.of("job_arrived"), "the second, when its own stage is submitted");
  }

  private void crowded() {
    beginJob();
    books.setObeying(false);
    for (int task = 0; task < 4; task++) {
      books.launched(1, task, "");
    }
    books.submitted(1, 1, 2); // tasks of the older attempt still run
    Map<String, Object> sync = sync();
    Check.same(toldStage(sync, 1).get("finished"), 6, "six are done");
    Check.same(states(sync).stream().filter(text -> text.contains("running")).count(), 2L, "so at most two run");
  }

  private void order() {
    begin();
    books.jobSeen(job(0, "job 0", "a", false, stage(1, 4)), 5);
    books.jobSeen(job(1, "job 1", "b", false, stage(2, 4)), 5);
    told();
    obey(say("start 0 2", "start 1 1"), "1 1", "2 1");
    Check.that(books.rank(1) < books.rank(2), "the last chosen first");
    obey(say("start 2 2"), "2 2");
    Check.that(books.rank(2) < books.rank(1), "then the other");
    Check.that(books.rank(2) < books.rank(77), "those that nobody knows come last");
    books.setObeying(false);
    Check.same(books.rank(2), books.rank(1), "Spark's own order");
  }

  private void stalls() {
    beginJob();
    Check.same(books.stall(), Books.Stall.NO_SLOT, "no slot");
    obey(say("start 0 1"), "1 1");
    Check.same(books.stall(), Books.Stall.UNUSED_SLOT, "a slot that nobody uses");
    books.launched(1, 0, "");
    Check.same(books.stall(), Books.Stall.NONE, "a task runs");
    books.succeeded(1, 0, "", 1);
    books.setObeying(false);
    Check.same(books.stall(), Books.Stall.NONE, "Spark decides");
  }

  private void memory() {
    books.executorAdded("a", 4);
    for (int round = 0; round < 2; round++) { // without a service, then with one
      for (int number = 0; number < 3000; number++) {
        int base = 10_000 * (round + 1) + 2 * number;
        books.jobSeen(job(base, "job " + base, "x", false, stage(base, 1), stage(base + 1, 1, base)), 5);
        for (int id = base; id < base + 2; id++) {
          books.submitted(id, 0, 1);
          if (round == 1) {
            books.takeEvents();
            obey(say("start 0 " + id));
          }
          books.launched(id, 0, "");
          books.succeeded(id, 0, "", 1);
        }
        books.sparkJobEnded(base, List.of(base, base + 1), true);
        String query = "query " + base;
        books.jobSeen(job(base + 1, query, "x", true, stage(base + 100_000, 1)), 5);
        books.queryEnded(query, true);
      }
      Check.that(books.numKept() < 1100, books.numKept() + " things are kept after round " + round);
      if (round == 0) {
        sync();
        books.setObeying(true);
      }
    }
    Check.that(!books.isDirty(), "all agree: " + books.whyDirty());
  }
}
