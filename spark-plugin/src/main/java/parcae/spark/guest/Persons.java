package parcae.spark.guest;

import java.lang.reflect.Method;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.scheduler.SparkListenerEvent;
import parcae.spark.Names;

/**
 * Who runs a job: the person that a server names, else the name of what recurs. Of event logs,
 * `parcae workload import` says the same; both are tested with the events in `servers.json`.
 */
final class Persons {
  /** The local property, or setting, by which an application without a server names the person. */
  static final String PROPERTY = "spark.parcae.user";

  /**
   * A user's name may have `_Session_` in it, so the last one counts; a client's tags may look like
   * this one behind Connect's prefix.
   */
  private static final Pattern CONNECT = Pattern.compile(
      "(?:^|,)SparkConnect_OperationTag_User_([^,]+)_Session_[0-9a-f-]{36}_Operation_");
  /** Kyuubi's `spark.kyuubi.session.real.user` keeps the first person's name for everybody. */
  private static final String KYUUBI = "kyuubi.session.user";
  private static final String THRIFT = "SparkListenerThriftServerOperationStart";
  private static final String GROUP = "spark.jobGroup.id";
  private static final String POOL = "spark.scheduler.pool";
  private static final int MAX_STATEMENTS = 10_000;

  /** The user of a Thrift server's statement, by job group. */
  private final Map<String, String> statements = Collections.synchronizedMap(
      new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, String> eldest) {
          return size() > MAX_STATEMENTS;
        }
      });
  private volatile boolean keepsPools;
  private volatile Set<String> pools = Set.of();
  private volatile String owner = "";

  /** Sets the deployment's pools, and whether they keep their shares, each with own accounts. */
  void usePools(Set<String> defined, boolean keeps) {
    pools = defined;
    keepsPools = keeps;
  }

  /** Sets the person of all jobs for which nothing else names one. */
  void ownedBy(String user) {
    owner = user;
  }

  /** Notes the user of a Thrift server's statement; the event comes before its jobs. */
  void note(SparkListenerEvent event) throws ReflectiveOperationException {
    if (event.getClass().getSimpleName().equals(THRIFT)) {
      String user = text(event, "userName");
      if (!user.isEmpty()) {
        statements.put(text(event, "groupId"), user);
      }
    }
  }

  /** A field of an event whose class is not there without Spark's Thrift server. */
  private static String text(Object event, String field) throws ReflectiveOperationException {
    Method method = event.getClass().getMethod(field);
    Object value = method.invoke(event);
    return value == null ? "" : value.toString();
  }

  /** The pool whose accounts count for a job with these properties; empty if pools do not count. */
  String poolOf(Properties properties) {
    String pool = keepsPools ? Names.get(properties, POOL) : "";
    return keepsPools && pool.isEmpty() ? "default" : pool;
  }

  /**
   * The person who runs a job with these properties; where none is known, a pool of the deployment
   * (if pools do not keep their shares), the job group or, outside SQL, the name; else empty.
   */
  String of(Properties properties) {
    Matcher tag = CONNECT.matcher(Names.get(properties, "spark.job.tags"));
    String group = Names.get(properties, GROUP);
    String pool = Names.get(properties, POOL);
    boolean isSql = Order.executionOf(properties) != null; // its plan has a better name
    String[] known = {
        tag.find() ? tag.group(1) : "",
        Names.get(properties, KYUUBI),
        statements.getOrDefault(group, ""),
        Names.get(properties, PROPERTY),
        owner,
        !keepsPools && pools.contains(pool) ? pool : "",
        Names.isGenerated(group) ? "" : recurring(Names.given(properties, GROUP)),
        isSql ? "" : recurring(Names.given(properties, "spark.job.description")),
        isSql ? "" : recurring(Names.given(properties, "callSite.short"))};
    for (String name : known) {
      if (!name.isBlank()) {
        return name.strip();
      }
    }
    return "";
  }

  /** A name without digits, which often count the steps of a loop. */
  static String recurring(String name) {
    return name.replaceAll("[0-9]+", "").trim();
  }
}
