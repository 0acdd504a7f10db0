package parcae.spark;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.ExternalClusterManager;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend;
import org.apache.spark.scheduler.local.LocalSchedulerBackend;

/** Master URLs `local-parcae[N]` and `spark-parcae://HOST:PORT`: Spark's own backends under a scheduler that asks the service. */
public final class ParcaeClusterManager implements ExternalClusterManager {
  private static final Pattern LOCAL = Pattern.compile("local-parcae\\[(\\d+|\\*)(?:,\\s*(\\d+))?\\]");
  private static final String STANDALONE = "spark-parcae://";

  @Override
  public boolean canCreate(String master) {
    return LOCAL.matcher(master).matches() || master.startsWith(STANDALONE);
  }

  @Override
  public TaskScheduler createTaskScheduler(SparkContext context, String master) {
    Matcher local = LOCAL.matcher(master);
    if (!local.matches()) {
      return new ParcaeScheduler(context, context.conf().getInt("spark.task.maxFailures", 4), false);
    }
    return new ParcaeScheduler(context, local.group(2) == null ? 1 : Integer.parseInt(local.group(2)), true);
  }

  @Override
  public SchedulerBackend createSchedulerBackend(SparkContext context, String master, TaskScheduler scheduler) {
    Matcher local = LOCAL.matcher(master);
    if (!local.matches()) {
      String[] urls = master.substring(STANDALONE.length()).split(",");
      for (int i = 0; i < urls.length; i++) {
        urls[i] = "spark://" + urls[i];
      }
      return new StandaloneSchedulerBackend((TaskSchedulerImpl) scheduler, context, urls);
    }
    int cores = local.group(1).equals("*") ? Runtime.getRuntime().availableProcessors() : Integer.parseInt(local.group(1));
    return new LocalSchedulerBackend(context.getConf(), (TaskSchedulerImpl) scheduler, cores);
  }

  @Override
  public void initialize(TaskScheduler scheduler, SchedulerBackend backend) {
    ((TaskSchedulerImpl) scheduler).initialize(backend);
  }
}
