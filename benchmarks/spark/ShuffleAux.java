import java.nio.ByteBuffer;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.api.ApplicationInitializationContext;
import org.apache.hadoop.yarn.server.api.ApplicationTerminationContext;
import org.apache.hadoop.yarn.server.api.AuxiliaryService;
import org.apache.spark.network.TransportContext;
import org.apache.spark.network.server.TransportServer;
import org.apache.spark.network.shuffle.ExternalBlockHandler;
import org.apache.spark.network.util.MapConfigProvider;
import org.apache.spark.network.util.TransportConf;

/**
 * Spark's shuffle server inside a NodeManager: what YarnShuffleService, which is not in the package
 * of PySpark, does without authentication.
 */
public final class ShuffleAux extends AuxiliaryService {
  private ExternalBlockHandler handler;
  private TransportServer server;

  public ShuffleAux() {
    super("spark_shuffle");
  }

  @Override
  protected void serviceInit(Configuration conf) throws Exception {
    TransportConf transport = new TransportConf("shuffle", MapConfigProvider.EMPTY);
    handler = new ExternalBlockHandler(transport, null);
    int port = conf.getInt("spark.shuffle.service.port", 0);
    TransportContext context = new TransportContext(transport, handler);
    server = context.createServer("127.0.0.1", port, List.of());
  }

  @Override
  protected void serviceStop() {
    if (server != null) {
      server.close();
    }
  }

  @Override
  public void initializeApplication(ApplicationInitializationContext context) {}

  @Override
  public void stopApplication(ApplicationTerminationContext context) {
    handler.applicationRemoved(context.getApplicationId().toString(), false);
  }

  @Override
  public ByteBuffer getMetaData() {
    return ByteBuffer.allocate(0);
  }
}
