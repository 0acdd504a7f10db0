package parcae.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.ExternalClusterManager;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.cluster.YarnClusterScheduler;
import org.apache.spark.scheduler.cluster.YarnScheduler;
import org.apache.spark.scheduler.local.LocalSchedulerBackend;

/**
 * YARN's task schedulers over cores of this JVM: the part of YARN that runs without a
 * ResourceManager. The masters are local-yarn-client and local-yarn-cluster.
 */
public final class YarnLocal implements ExternalClusterManager {
  private static final int CORES = 2;

  @Override
  public boolean canCreate(String master) {
    return master.startsWith("local-yarn-");
  }

  @Override
  public TaskScheduler createTaskScheduler(SparkContext context, String master) {
    return master.endsWith("client") ? new YarnScheduler(context) : new YarnCluster(context);
  }

  @Override
  public SchedulerBackend createSchedulerBackend(
      SparkContext context, String master, TaskScheduler scheduler) {
    return new LocalSchedulerBackend(context.getConf(), (TaskSchedulerImpl) scheduler, CORES);
  }

  @Override
  public void initialize(TaskScheduler scheduler, SchedulerBackend backend) {
    ((TaskSchedulerImpl) scheduler).initialize(backend);
  }

  /** Without the hook that passes the context to an application master: there is none here. */
  private static final class YarnCluster extends YarnClusterScheduler {
    YarnCluster(SparkContext context) {
      super(context);
    }

    @Override
    public void postStartHook() {}
  }
}
