package parcae.spark.guest;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.LongPredicate;
import java.util.function.LongSupplier;
import java.util.function.ToDoubleFunction;

/**
 * The order between users: what a query's user has taken beyond its share counts as remaining work.
 *
 * <p>If pools keep their shares, every pool has accounts of its own, since the order applies inside
 * a pool only. It uses no types of Spark. Only one thread may use it at a time.
 */
final class Ledgers {
  /** While two users have queries, an order is replaced after this time at the latest. */
  private static final long RENEW_MS = 200;

  private final double factor;
  private final double floor;
  private final LongSupplier wall;
  private final ToDoubleFunction<String> weightOf;
  private final Map<String, Accounts> byPool = new LinkedHashMap<>();
  private long nowMs;

  /**
   * Creates the accounts.
   *
   * @param terms how much the accounts count
   * @param wall the clock of the tasks' launch times, in ms
   * @param weightOf the weight of a user
   */
  Ledgers(Terms terms, LongSupplier wall, ToDoubleFunction<String> weightOf) {
    factor = terms.factor;
    floor = terms.floor;
    this.wall = wall;
    this.weightOf = weightOf;
  }

  /** How much accounts count, as a policy file says it. */
  static final class Terms {
    /** What a user has taken beyond its share counts so many times as remaining work. */
    final double factor;
    /** At least this share of a query's own remaining work counts. */
    final double floor;

    Terms(double factor, double floor) {
      this.factor = factor;
      this.floor = floor;
    }
  }

  /** Brings all accounts up to the present; it must be called before every change. */
  void advance(long clockMs, int cores) {
    nowMs = clockMs;
    long wallMs = wall.getAsLong();
    byPool.values().forEach(accounts -> accounts.advance(nowMs, wallMs, cores));
  }

  /** A query of a user opens. */
  void opened(Query query, String user, String pool) {
    query.accounts = byPool.computeIfAbsent(pool, name -> new Accounts(weightOf, nowMs));
    query.account = query.accounts.opened(user);
  }

  /** The account of a user in a pool; null if there is none. */
  Accounts.Account find(String user, String pool) {
    Accounts accounts = byPool.get(pool);
    return accounts == null ? null : accounts.find(user);
  }

  /** A query has other tasks to start than before. */
  void changed(Query query) {
    double waiting = 0;
    for (StageRow row : query.rows()) {
      waiting += row.isPending() ? query.taskCores * (row.tasks - row.started) : 0;
    }
    query.account.waits(waiting - query.waiting);
    query.waiting = waiting;
  }

  /** A query has ended; tasks of it may still run. */
  void ended(Query query) {
    query.account.waits(-query.waiting);
    query.accounts.ended(query.account);
  }

  /** A task of a query holds cores; see `Follower.taskHeld`. */
  void held(long task, Query query, double cores, long launchMs) {
    query.taskCores = cores;
    query.accounts.held(task, query.account, cores, launchMs);
  }

  /** A task has given its cores back; `query` is null if it has ended, or is not known. */
  void released(long task, Query query, double cores, long launchMs, long endMs) {
    for (Accounts accounts : byPool.values()) {
      boolean isOf = query != null && query.accounts == accounts;
      accounts.released(task, isOf ? query.account : null, cores, launchMs, endMs);
    }
  }

  /** Releases the tasks that did not run at two checks in a row: their ends were lost. */
  void keep(LongPredicate isRunning) {
    long wallMs = wall.getAsLong();
    byPool.values().forEach(accounts -> accounts.keep(isRunning, wallMs));
  }

  /**
   * Applies the accounts to the tiers that a policy has set.
   *
   * @param open the open queries
   * @param work remaining work in ms of a core, by the tier that the policy has set
   * @param wakeMs when the policy wants to plan again, or Order.NOT_YET
   * @return when to plan again at the latest, or Order.NOT_YET
   */
  long apply(Collection<Query> open, Work work, long wakeMs) {
    byPool.values().removeIf(accounts -> accounts.all().isEmpty());
    boolean isShared = byPool.values().stream().anyMatch(accounts -> accounts.numUsers() > 1);
    for (Query query : open) {
      if (query.accounts.numUsers() > 1) {
        query.tier = score(work.ofTier(query.tier), query.account);
      }
    }
    long renewMs = nowMs + RENEW_MS;
    return isShared && (wakeMs == Order.NOT_YET || wakeMs > renewMs) ? renewMs : wakeMs;
  }

  /** The remaining work that a policy's tier means, in ms of a core. */
  interface Work {
    double ofTier(double tier);
  }

  private double score(double leftMs, Accounts.Account account) {
    return Math.max(leftMs + factor * account.overdraftMs(), floor * leftMs);
  }

  /** Adds to an order the tiers of queries that are not in it yet, which have so much work. */
  void addOthers(Order.Builder order, double workMs) {
    byPool.forEach((pool, accounts) -> {
      if (accounts.numUsers() > 1) {
        order.other(pool, "", workMs);
        for (Accounts.Account account : accounts.all()) {
          order.other(pool, account.user, score(workMs, account));
        }
      }
    });
  }
}
