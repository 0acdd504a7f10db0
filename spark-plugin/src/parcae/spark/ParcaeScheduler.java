package parcae.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskState;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSet;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Enumeration;
import scala.Option;

/**
 * Spark's task scheduler, which tells the books what happens and launches tasks only of stages that have a slot.
 *
 * Every hook first or last does what Spark does, and nothing of ours that is thrown gets out of it: after an error of ours the
 * scheduler is Spark's own for good.
 */
final class ParcaeScheduler extends TaskSchedulerImpl {
  private static final Logger LOG = LoggerFactory.getLogger(ParcaeScheduler.class);

  // Set after TaskSchedulerImpl's constructor, which may call overridden methods: no field here has an initializer.
  private final Settings settings;
  private final Books books;
  private final JobReader reader;
  private ParcaePool pool;
  private Link link;
  private volatile boolean isBroken;
  private String broken;

  ParcaeScheduler(SparkContext context, int maxTaskFailures, boolean isLocal) {
    super(context, maxTaskFailures, isLocal, new SystemClock());
    settings = new Settings(context.conf());
    books = new Books();
    reader = new JobReader(books, settings.jobKey);
    // A queue of its own: Spark drops events that other listeners are too slow for.
    context.listenerBus().addToQueue(new ParcaeListener(this, books, settings.tasksCpus), "parcae");
  }

  Books books() {
    return books;
  }

  boolean isWorking() {
    return !isBroken;
  }

  /** After an error of ours: Spark schedules by itself from now on. */
  void broke(String where, Throwable error) {
    if (!isBroken) {
      isBroken = true;
      broken = where + ": " + error;
      books.setObeying(false);
      LOG.error("parcae: {} failed; Spark schedules by itself from now on", where, error);
      Link current = link;
      if (current != null) {
        Thread stopper = new Thread(current::stop, "parcae-stop");
        stopper.setDaemon(true);
        stopper.start();
      }
    }
  }

  /** Spark's lines stay under Spark's name, whatever a log configuration says of it. */
  @Override
  public String logName() {
    return TaskSchedulerImpl.class.getName();
  }

  @Override
  public Pool rootPool() {
    if (pool == null) {
      pool = new ParcaePool(this, schedulingMode());
    }
    return pool;
  }

  @Override
  public void postStartHook() {
    super.postStartHook();
    try {
      String version = "parcae-spark for Spark " + sc().version();
      link = new Link(books, settings, sc().applicationId(), sc().appName(), version, () -> backend().reviveOffers());
      link.start();
    } catch (Throwable error) {
      broke("the start", error);
    }
  }

  @Override
  public void submitTasks(TaskSet taskSet) {
    if (!isBroken) {
      try {
        reader.read(dagScheduler(), taskSet);
      } catch (Throwable error) {
        broke("reading a job", error);
      }
    }
    super.submitTasks(taskSet);
  }

  @Override
  public TaskSetManager createTaskSetManager(TaskSet taskSet, int maxTaskFailures) {
    return new ParcaeTaskSetManager(this, taskSet, maxTaskFailures);
  }

  @Override
  public void statusUpdate(long tid, Enumeration.Value state, ByteBuffer data) {
    ParcaeTaskSetManager manager = null;
    TaskInfo info = null;
    if (!isBroken && state.equals(TaskState.FINISHED())) {
      try {
        TaskSetManager found = taskIdToTaskSetManager().get(tid);
        if (found instanceof ParcaeTaskSetManager) {
          manager = (ParcaeTaskSetManager) found;
          Option<TaskInfo> known = manager.taskInfos().get(tid);
          info = known.isDefined() ? known.get() : null;
        }
      } catch (Throwable error) {
        broke("looking at a finished task", error);
      }
    }
    if (info != null) { // told first, so that the core that becomes free finds the books as they are
      manager.tell(info);
    }
    super.statusUpdate(tid, state, data);
  }

  @Override
  public void stop(int exitCode) {
    try {
      if (link != null) {
        link.stop();
        writeReport();
      }
    } catch (Throwable error) {
      LOG.warn("parcae: stop", error);
    }
    super.stop(exitCode);
  }

  private void writeReport() throws IOException {
    Map<String, Object> report = link.report();
    report.put("broken", broken);
    LOG.info("parcae: {}", report);
    if (!settings.reportFile.isEmpty()) {
      Path file = Path.of(settings.reportFile).toAbsolutePath();
      Path partial = file.resolveSibling(file.getFileName() + ".partial");
      Files.write(partial, new ObjectMapper().writeValueAsBytes(report));
      Files.move(partial, file, StandardCopyOption.REPLACE_EXISTING);
    }
  }
}
