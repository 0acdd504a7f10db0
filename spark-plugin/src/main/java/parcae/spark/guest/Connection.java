package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * A connection to the service, after the greeting.
 *
 * <p>A separate thread reads the service's messages and ends with the connection. The connection is
 * closed when the service sends nothing for a while or stops reading.
 */
final class Connection implements AutoCloseable {
  private static final int CONNECT_MS = 2_000;
  private static final int GREETING_MS = 5_000;
  private static final int JOIN_MS = 2_000;
  private static final int BUFFER_BYTES = 1 << 16;

  private final Socket plain;
  private final Socket socket;
  private final DataInputStream in;
  private final OutputStream out;
  private final DeadlineStream stream;
  private final int silenceMs;
  private Thread reader;
  private String policy = "";

  /** Handles the service's messages. */
  interface MessageHandler {
    /** A message came that is not an error. */
    void handle(JsonNode message) throws IOException;

    /** The service refused a message and asks for the whole state. */
    void refused(Wire.ProtocolException why);

    /** The connection has ended: no more messages will come. */
    void lost(Throwable error);
  }

  private Connection(Socket plain, LinkSettings settings, int silenceMs)
      throws IOException, GeneralSecurityException {
    this.plain = plain;
    this.silenceMs = silenceMs;
    plain.setTcpNoDelay(true);
    plain.connect(new InetSocketAddress(settings.host, settings.port), CONNECT_MS);
    plain.setSoTimeout(GREETING_MS);
    socket = settings.trustFile == null ? plain : encrypted(plain, settings);
    stream = new DeadlineStream(socket);
    in = new DataInputStream(new BufferedInputStream(stream, BUFFER_BYTES));
    out = socket.getOutputStream();
  }

  /**
   * Connects and greets the service.
   *
   * @param silenceMs after so many ms without a message the service counts as gone
   * @throws IOException the service cannot be reached, speaks another protocol, or does not know
   *     the secret
   */
  static Connection open(
      LinkSettings settings, String applicationId, String applicationName, int silenceMs)
      throws IOException, GeneralSecurityException {
    Socket plain = new Socket();
    try {
      Connection connection = new Connection(plain, settings, silenceMs);
      connection.stream.allow(GREETING_MS);
      connection.greet(settings.secret, Wire.text(applicationId), Wire.text(applicationName));
      return connection;
    } catch (IOException | GeneralSecurityException | RuntimeException error) {
      plain.close();
      throw error;
    }
  }

  /** Exchanges the greeting; with a secret, each side proves to the other that it knows it. */
  private void greet(byte[] secret, String applicationId, String applicationName)
      throws IOException, GeneralSecurityException {
    String nonce = Wire.newNonce();
    send(Wire.hello(applicationId, applicationName, nonce));
    JsonNode reply = Wire.read(in);
    if (reply.path("type").asText().equals("challenge")) {
      if (secret == null) {
        throw new IOException("the service asks for a secret: set spark.parcae.secretFile");
      }
      String serviceNonce = reply.path("nonce").asText();
      Map<String, Object> proof = Wire.message("proof");
      proof.put("mac", Wire.proof(secret, "client", nonce, serviceNonce, applicationId));
      send(proof);
      reply = Wire.read(in);
      String expected = Wire.proof(secret, "service", nonce, serviceNonce, applicationId);
      if (!Wire.isSame(reply.path("mac").asText(), expected)) {
        throw new IOException("the service does not know the secret");
      }
    } else if (secret != null) {
      throw new IOException("the service does not ask for the secret that is set here");
    }
    if (!reply.path("type").asText().equals("welcome")) {
      throw new Wire.ProtocolException("the service did not send a welcome");
    }
    if (reply.path("protocol").asInt(-1) != Wire.VERSION) {
      throw new Wire.ProtocolException(
          "the service speaks another version of the protocol: " + reply.path("protocol"));
    }
    policy = Wire.text(reply.path("policy").asText());
  }

  /** The policy by which the service plans. */
  String policy() {
    return policy;
  }

  /** Starts the thread that passes the service's messages to the handler. */
  void listen(MessageHandler handler) {
    reader = new Thread(() -> {
      try {
        while (true) {
          stream.allow(silenceMs);
          try {
            handler.handle(Wire.read(in));
          } catch (Wire.ProtocolException error) {
            if (!error.isForgiven) {
              throw error;
            }
            handler.refused(error);
          }
        }
      } catch (Throwable error) {
        closeSocket(); // ends a write that another thread may be waiting in
        handler.lost(error);
      }
    }, "parcae-reader");
    reader.setDaemon(true);
    reader.start();
  }

  /** Sends a message in one write. */
  void send(Map<String, Object> message) throws IOException {
    out.write(Wire.frame(message));
    out.flush();
  }

  @Override
  public void close() throws InterruptedException {
    closeSocket();
    if (reader != null && reader != Thread.currentThread()) {
      reader.join(JOIN_MS);
    }
  }

  /** Closes the socket below TLS, since closing TLS itself would wait for a write to end. */
  private void closeSocket() {
    try {
      plain.close();
    } catch (IOException error) {
      // the connection ends in any case
    }
  }

  private static SSLSocket encrypted(Socket plain, LinkSettings settings)
      throws IOException, GeneralSecurityException {
    TrustManagerFactory managers =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    managers.init(trusted(settings.trustFile));
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, managers.getTrustManagers(), null);
    SSLSocket wrapped = (SSLSocket) context.getSocketFactory()
        .createSocket(plain, settings.host, settings.port, true);
    SSLParameters parameters = wrapped.getSSLParameters();
    // Checks that the certificate is for this host.
    parameters.setEndpointIdentificationAlgorithm("HTTPS");
    wrapped.setSSLParameters(parameters);
    wrapped.startHandshake();
    return wrapped;
  }

  private static KeyStore trusted(Path file) throws IOException, GeneralSecurityException {
    KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
    trusted.load(null, null);
    try (InputStream stream = Files.newInputStream(file)) {
      int number = 0;
      CertificateFactory factory = CertificateFactory.getInstance("X.509");
      for (Certificate each : factory.generateCertificates(stream)) {
        trusted.setCertificateEntry("ca" + number++, each);
      }
    }
    return trusted;
  }

  /** A stream with a deadline for a whole message, however slowly its bytes come. */
  private static final class DeadlineStream extends InputStream {
    private final Socket socket;
    private final InputStream stream;
    private long deadlineNs;

    DeadlineStream(Socket socket) throws IOException {
      this.socket = socket;
      this.stream = socket.getInputStream();
    }

    /** Sets the deadline: so many ms from now. */
    void allow(int ms) {
      deadlineNs = System.nanoTime() + ms * 1_000_000L;
    }

    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 255;
    }

    @Override
    public int read(byte[] bytes, int offset, int length) throws IOException {
      long leftMs = (deadlineNs - System.nanoTime()) / 1_000_000;
      if (leftMs <= 0) {
        throw new SocketTimeoutException("the service sends nothing");
      }
      socket.setSoTimeout((int) leftMs);
      return stream.read(bytes, offset, length);
    }
  }
}
