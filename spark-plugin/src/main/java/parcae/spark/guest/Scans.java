package parcae.spark.guest;

import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlanInfo;
import org.apache.spark.sql.execution.metric.SQLMetricInfo;
import org.apache.spark.sql.execution.ui.SparkListenerDriverAccumUpdates;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * The bytes that the scans of open SQL executions read: those of their files, times the share of
 * the columns that each reads, threefold if the execution writes rows. The driver tells the bytes
 * of a scan's files when it has listed them; until then they are what the planned relation has, or
 * what an earlier scan of the table read. They equal the `scan_bytes` that the importer of event
 * logs finds.
 */
final class Scans {
  private static final String BYTES_OF_FILES = "size of files read";
  private static final int MAX_TABLES = 10_000;
  private static final int MAX_DEPTH = 400;
  /** A type in a schema that has no types inside, and the end of one that is not written whole. */
  private static final Pattern TYPE =
      Pattern.compile("[:<,]([a-z_]+)(?:\\([0-9, ]*\\))?(?=[,>]|$)");
  private static final Pattern MORE_FIELDS = Pattern.compile("\\.\\.\\. (\\d{1,6}) more fields>$");
  private static final int OTHER_BYTES = 20;
  /** The names of operators that write rows. */
  private static final Pattern WRITE = Pattern.compile(
      "(?:Execute )?(?:Insert|Save|Append|Overwrite|Replace|Write|\\w{0,40}AsSelect)");
  /** What a query writes costs as much as reading it twice more. */
  private static final double WRITTEN = 3;
  private static final Map<String, Integer> BYTES_OF_TYPE = Map.ofEntries(
      Map.entry("boolean", 1), Map.entry("tinyint", 1), Map.entry("smallint", 2),
      Map.entry("int", 4), Map.entry("date", 4), Map.entry("float", 4), Map.entry("bigint", 8),
      Map.entry("double", 8), Map.entry("decimal", 8), Map.entry("timestamp", 8),
      Map.entry("timestamp_ntz", 8));

  /** In order of access: the table that was not read for longest is dropped first. */
  private final Map<String, Table> tables = new LinkedHashMap<>(16, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Table> eldest) {
      return size() > MAX_TABLES;
    }
  };
  /** The scans of the present plan of every open execution, by accumulator. */
  private final Map<Long, Map<Long, Scan>> executions = new HashMap<>();
  private final Set<Long> writes = new HashSet<>(); // open executions that write rows

  /** What is known of a table: bytes of a row with all known columns, and of its files. */
  private static final class Table {
    int rowBytes = 1;
    double fileBytes;
  }

  /** A scan: its table, bytes of a row with its columns, and of its files; -1 if not yet told. */
  private static final class Scan {
    final String table;
    final int rowBytes;
    double fileBytes = -1;

    Scan(String table, int rowBytes) {
      this.table = table;
      this.rowBytes = rowBytes;
    }
  }

  /** The bytes of a row of a schema as Spark writes it, at least 1. */
  static int bytesOfRow(String schema) {
    long bytes = 0;
    for (Matcher each = TYPE.matcher(schema); each.find(); ) {
      bytes += BYTES_OF_TYPE.getOrDefault(each.group(1), OTHER_BYTES);
    }
    Matcher more = MORE_FIELDS.matcher(schema);
    bytes += more.find() ? Long.parseLong(more.group(1)) * OTHER_BYTES : 0;
    return (int) Math.max(1, Math.min(bytes, Integer.MAX_VALUE));
  }

  /** Takes the relations of a planned query; one that cannot be planned has none. */
  void related(QueryExecution query) {
    Iterator<?> leaves;
    try {
      leaves = query.sparkPlan().collectLeaves().iterator();
    } catch (Exception error) {
      return;
    }
    while (leaves.hasNext()) {
      Object leaf = leaves.next();
      if (leaf instanceof FileSourceScanExec) {
        FileSourceScanExec scan = (FileSourceScanExec) leaf;
        Table table = table(text(scan.metadata(), "Location"));
        String schema = scan.relation().dataSchema().catalogString();
        table.rowBytes = Math.max(table.rowBytes, bytesOfRow(schema));
        table.fileBytes = scan.relation().sizeInBytes();
      }
    }
  }

  /** Takes the present plan of an execution. */
  void planned(long execution, SparkPlanInfo plan) {
    Map<Long, Scan> found = new HashMap<>();
    if (collect(plan, executions.getOrDefault(execution, Map.of()), found, 0)) {
      writes.add(execution);
    }
    executions.put(execution, found);
  }

  /** Collects the scans of a plan; returns whether it writes rows. */
  private boolean collect(
      SparkPlanInfo node, Map<Long, Scan> known, Map<Long, Scan> found, int depth) {
    for (Iterator<?> metrics = node.metrics().iterator(); metrics.hasNext(); ) {
      SQLMetricInfo metric = (SQLMetricInfo) metrics.next();
      if (metric.name().equals(BYTES_OF_FILES)) {
        Scan scan = known.get(metric.accumulatorId());
        if (scan == null) {
          int rowBytes = bytesOfRow(text(node.metadata(), "ReadSchema"));
          scan = new Scan(text(node.metadata(), "Location"), rowBytes);
        }
        Table table = table(scan.table);
        table.rowBytes = Math.max(table.rowBytes, scan.rowBytes);
        found.put(metric.accumulatorId(), scan);
      }
    }
    boolean isWrite = WRITE.matcher(node.nodeName()).lookingAt();
    if (depth < MAX_DEPTH) {
      for (Iterator<?> below = node.children().iterator(); below.hasNext(); ) {
        isWrite |= collect((SparkPlanInfo) below.next(), known, found, depth + 1);
      }
    }
    return isWrite;
  }

  private Table table(String location) {
    return tables.computeIfAbsent(location, key -> new Table());
  }

  private static String text(scala.collection.Map<String, String> metadata, String key) {
    return metadata.contains(key) ? metadata.apply(key) : "";
  }

  /** Takes what the driver has counted; returns whether that was bytes of a scan. */
  boolean counted(SparkListenerDriverAccumUpdates event) {
    Map<Long, Scan> scans = executions.getOrDefault(event.executionId(), Map.of());
    boolean hasScan = false;
    for (Iterator<?> all = event.accumUpdates().iterator(); all.hasNext(); ) {
      Tuple2<?, ?> update = (Tuple2<?, ?>) all.next();
      Scan scan = scans.get(((Number) update._1()).longValue());
      long bytes = ((Number) update._2()).longValue();
      if (scan != null && bytes >= 0) {
        scan.fileBytes = bytes;
        table(scan.table).fileBytes = bytes;
        hasScan = true;
      }
    }
    return hasScan;
  }

  /** The bytes that an execution reads, as far as they are known. */
  double bytes(long execution) {
    double bytes = 0;
    for (Scan scan : executions.getOrDefault(execution, Map.of()).values()) {
      Table table = table(scan.table);
      double files = scan.fileBytes >= 0 ? scan.fileBytes : table.fileBytes;
      bytes += files * scan.rowBytes / table.rowBytes;
    }
    return writes.contains(execution) ? WRITTEN * bytes : bytes;
  }

  /** Forgets an execution. */
  void ended(long execution) {
    executions.remove(execution);
    writes.remove(execution);
  }
}
