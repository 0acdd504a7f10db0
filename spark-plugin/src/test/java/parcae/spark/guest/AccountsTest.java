package parcae.spark.guest;

import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.junit.jupiter.api.Test;
import parcae.spark.Check;

/** What users' accounts say, computed by hand, and what becomes of the order. */
final class AccountsTest {
  private static final String UUID = "6f9619ff-8b86-d011-b42d-00cf4fc964ff";
  private static final int CORES = 4;
  private static final int STAGE = 7;

  /** Four cores that users share. */
  private static final class Shared {
    private long nowMs = 1_000;
    private final Accounts accounts;
    private long task;

    Shared(double weightOfAnn) {
      accounts = new Accounts(user -> user.equals("ann") ? weightOfAnn : 1, nowMs);
    }

    /** A user with a query, so many tasks that run and so many that wait. */
    Accounts.Account user(String name, int running, int waiting) {
      Accounts.Account account = accounts.opened(name);
      account.waits(waiting);
      for (int i = 0; i < running; i++) {
        accounts.held(task++, account, 1, nowMs);
      }
      return account;
    }

    void passes(long ms) {
      nowMs += ms;
      accounts.advance(nowMs, nowMs, CORES);
    }
  }

  private static void near(double found, double expected, String what) {
    Check.that(Math.abs(found - expected) < 1e-6, what + ": " + found + ", not " + expected);
  }

  @Test
  void splits() {
    Shared equal = new Shared(1);
    Accounts.Account ann = equal.user("ann", 4, 10);
    Accounts.Account bob = equal.user("bob", 0, 4);
    equal.passes(100);
    near(ann.overdraftMs(), 200, "four cores where an equal split gives two");
    near(bob.overdraftMs(), -200, "none where it gives two");
    Shared weighted = new Shared(3);
    ann = weighted.user("ann", 0, 10);
    bob = weighted.user("bob", 4, 10);
    weighted.passes(100);
    near(ann.overdraftMs(), -300, "none where the weight gives three");
    near(bob.overdraftMs(), 300, "four where the weight gives one");
    Shared small = new Shared(1);
    ann = small.user("ann", 1, 0);
    bob = small.user("bob", 2, 9);
    small.passes(100);
    near(ann.overdraftMs(), 0, "all that it can use");
    near(bob.overdraftMs(), 0, "the rest: an idle core is owed to nobody while a task waits");
  }

  @Test
  void debts() {
    for (int steps : new int[] {1, 30}) {
      Shared one = new Shared(1);
      Accounts.Account ann = one.user("ann", 4, 10);
      Accounts.Account bob = one.user("bob", 0, 4);
      one.passes(100);
      for (long id = 0; id < 4; id++) {
        one.accounts.released(id, ann, 1, one.nowMs - 100, one.nowMs);
      }
      ann.waits(-10);
      one.accounts.ended(ann);
      bob.waits(-4);
      one.accounts.held(99, bob, 1, one.nowMs);
      for (int i = 0; i < steps; i++) {
        one.passes(30 / steps); // three cores are free: the split gives them to who is behind
      }
      near(ann.overdraftMs(), 110, "a debt of 200 is paid off by three cores");
      Check.same(one.accounts.numUsers(), 1, "users with a query");
      one.passes(60);
      one.passes(1);
      Check.same(one.accounts.all().size(), 1, "accounts when the debt is paid");
      near(one.accounts.opened("ann").overdraftMs(), 0, "a new account");
    }
  }

  @Test
  void credits() {
    Shared one = new Shared(1);
    one.user("ann", 4, 10);
    Accounts.Account bob = one.user("bob", 0, 4);
    one.passes(100);
    bob.waits(-4);
    one.accounts.ended(bob);
    one.passes(1);
    near(one.accounts.opened("bob").overdraftMs(), 0, "what an idle user was owed is forgotten");
    one.passes(50);
    near(one.accounts.opened("cid").overdraftMs(), 0, "a new user is owed nothing");
  }

  @Test
  void lostEnds() {
    Shared one = new Shared(1);
    Accounts.Account ann = one.user("ann", 2, 0);
    one.user("bob", 2, 0);
    one.passes(100);
    one.accounts.keep(id -> id != 1, one.nowMs);
    one.passes(100);
    one.accounts.keep(id -> id != 1, one.nowMs); // task 1 does not run, for the second time
    one.passes(100);
    near(ann.overdraftMs(), 0, "before the late end");
    double before = 2 * 200 + 100;
    one.accounts.released(1, ann, 1, one.nowMs - 300, one.nowMs);
    one.accounts.released(0, ann, 1, one.nowMs - 300, one.nowMs);
    one.accounts.released(50, ann, 2, one.nowMs - 10, one.nowMs); // its start was lost
    one.passes(1);
    near(ann.overdraftMs(), before + 20 - 500 - 4 + 2, "what it was charged, less its split");
  }

  private static Properties properties(String... values) {
    Properties made = new Properties();
    for (int i = 0; i < values.length; i += 2) {
      made.setProperty(values[i], values[i + 1]);
    }
    return made;
  }

  @Test
  void persons() {
    Persons persons = new Persons();
    persons.usePools(Set.of("web"), false);
    String[][] cases = {
        {"web", "spark.scheduler.pool", "web", "spark.jobGroup.id", "nightly"},
        {"nightly", "spark.scheduler.pool", "query-7", "spark.jobGroup.id", "nightly"},
        {"backfill", "spark.jobGroup.id", "backfill 17", "spark.sql.execution.id", "5"},
        {"", "spark.jobGroup.id", UUID, "spark.sql.execution.id", "5"},
        {"count at app.py:", "callSite.short", "count at /x/app.py:12", "spark.jobGroup.id", "12"},
        {"tidy up", "spark.job.description", "tidy up 3", "callSite.short", "count at app.py:12"},
        {""},
    };
    for (String[] each : cases) {
      String[] values = List.of(each).subList(1, each.length).toArray(new String[0]);
      Check.same(persons.of(properties(values)), each[0], "the person of " + each[0]);
    }
    Check.same(persons.poolOf(properties("spark.scheduler.pool", "web")), "", "pools do not count");
    persons.usePools(Set.of("web"), true);
    Check.same(persons.poolOf(properties("spark.scheduler.pool", "web")), "web", "pools count");
    Check.same(persons.poolOf(properties()), "default", "Spark's pool for jobs without one");
    Check.same(
        persons.of(properties("spark.scheduler.pool", "web", "spark.sql.execution.id", "5")), "",
        "a pool that keeps its share is no person");
  }

  /** A planner of an application, and its clock. */
  private static final class Application {
    long nowMs = 1_000;
    long task;
    final Planner planner = new Planner(Policy.plain(), () -> nowMs, () -> nowMs, user -> 1);

    Application() {
      planner.coresChanged(CORES);
    }

    void arrives(int job, String user, int tasks) {
      Follower.ListedStage stage = new Follower.ListedStage(STAGE + job, tasks, List.of());
      planner.jobStarted(new Follower.StartedJob(
          job, "job " + job, null, List.of(), "query " + job, List.of(stage)).by(user, ""));
      planner.stageSubmitted(STAGE + job, 0, tasks);
    }

    void starts(int job, int tasks) {
      for (int i = 0; i < tasks; i++) {
        planner.taskHeld(task++, STAGE + job, 1, nowMs);
        planner.taskStarted(STAGE + job, 0);
      }
    }

    double tier(int job) {
      return planner.plan().job("job " + job).tier;
    }
  }

  @Test
  void orders() {
    Application one = new Application();
    one.arrives(1, "ann", 40);
    one.arrives(2, "ann", 4);
    one.starts(1, 4);
    one.nowMs += 3_000;
    near(one.tier(1), 36_000, "remaining work, as long as there is one user");
    near(one.tier(2), 4_000, "the same of the other query");
    Check.same(one.planner.plan().wakeMs(), Order.NOT_YET, "when to plan again");
    one.arrives(3, "bob", 40);
    one.nowMs += 1_000;
    // While ann has four cores and bob none, two of them are bob's.
    near(one.tier(1), 36_000 + 1.5 * (16_000 - 12_000 - 2_000), "an overdraft counts");
    near(one.tier(2), 4_000 + 1.5 * 2_000, "in every query of its user");
    near(one.tier(3), 40_000 - 1.5 * 2_000, "and what is owed counts off");
    Check.same(one.planner.plan().wakeMs(), one.nowMs + 200, "when to plan again");
    one.nowMs += 60_000;
    near(one.tier(3), 4_000, "a tenth of the own work counts at least");
    Order order = one.planner.plan();
    Persons persons = new Persons();
    double average = 100_000;
    near(
        order.job("job 9", properties(Persons.PROPERTY, "ann"), persons).tier,
        average + 1.5 * 122_000, "a query that no plan knows yet has its user's overdraft");
    near(
        order.job("job 9", properties(Persons.PROPERTY, "cid"), persons).tier, average,
        "one of a new user has none");
  }

  @Test
  void announcedQueries() {
    Application one = new Application();
    String plan = "== Physical Plan ==\n* Filter (2)\n\n(2) Filter\nCondition : (a#1 > %d)\n";
    one.planner.executionStarted("5", String.format(plan, 1));
    Follower.ListedStage stage = new Follower.ListedStage(STAGE, 40, List.of());
    one.planner.jobStarted(new Follower.StartedJob(
        0, "5", "5", List.of(), "select 1", List.of(stage)));
    one.planner.stageSubmitted(STAGE, 0, 40);
    one.starts(0, 4);
    one.arrives(1, "bob", 40);
    one.nowMs += 1_000;
    one.planner.executionStarted("6", String.format(plan, 2));
    double tier =
        one.planner.plan().job("6", properties("spark.sql.execution.id", "6"), new Persons()).tier;
    near(tier, 100_000 + 1.5 * 2_000, "the next step of a loop has the loop's overdraft");
  }
}
