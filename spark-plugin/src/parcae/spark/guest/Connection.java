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
 * A greeted connection to the service. A thread of its own reads what the service says, and ends
 * with the connection; a service that says nothing for a while, or does not read, loses it.
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
  private final Patient patient;
  private final int silenceMs;
  private Thread reader;
  private String policy = "";

  /** Takes what the service says. */
  interface Hearer {
    void hear(JsonNode message) throws IOException;

    /** The service refused something and wants to be sent everything. */
    void refused(Wire.ProtocolException why);

    /** Nothing more will be heard. */
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
    patient = new Patient(socket);
    in = new DataInputStream(new BufferedInputStream(patient, BUFFER_BYTES));
    out = socket.getOutputStream();
  }

  /**
   * Connects and greets the service.
   *
   * @param silenceMs without a word for so long the service is thought to be gone
   * @throws IOException it is not there, speaks another protocol, or does not know the secret
   */
  static Connection open(
      LinkSettings settings, String applicationId, String applicationName, int silenceMs)
      throws IOException, GeneralSecurityException {
    Socket plain = new Socket();
    try {
      Connection made = new Connection(plain, settings, silenceMs);
      made.patient.allow(GREETING_MS);
      made.greet(settings.secret, Wire.text(applicationId), Wire.text(applicationName));
      return made;
    } catch (IOException | GeneralSecurityException | RuntimeException error) {
      plain.close();
      throw error;
    }
  }

  private void greet(byte[] secret, String applicationId, String applicationName)
      throws IOException, GeneralSecurityException {
    String nonce = Wire.newNonce();
    send(Wire.hello(applicationId, applicationName, nonce));
    JsonNode reply = Wire.read(in);
    if (reply.path("type").asText().equals("challenge")) {
      if (secret == null) {
        throw new IOException("the service asks for a secret: set spark.parcae.secretFile");
      }
      String theirs = reply.path("nonce").asText();
      Map<String, Object> proof = Wire.message("proof");
      proof.put("mac", Wire.proof(secret, "client", nonce, theirs, applicationId));
      send(proof);
      reply = Wire.read(in);
      String expected = Wire.proof(secret, "service", nonce, theirs, applicationId);
      if (!Wire.isSame(reply.path("mac").asText(), expected)) {
        throw new IOException("the service does not know the secret");
      }
    } else if (secret != null) {
      throw new IOException("the service does not ask for the secret that is set here");
    }
    if (!reply.path("type").asText().equals("welcome")) {
      throw new Wire.ProtocolException("no welcome");
    }
    if (reply.path("protocol").asInt(-1) != Wire.VERSION) {
      throw new Wire.ProtocolException("a service that speaks version " + reply.path("protocol"));
    }
    policy = Wire.text(reply.path("policy").asText());
  }

  /** The policy by which the service plans. */
  String policy() {
    return policy;
  }

  /** Begins to hand on what the service says. */
  void listen(Hearer hearer) {
    reader = new Thread(() -> {
      try {
        while (true) {
          patient.allow(silenceMs);
          try {
            hearer.hear(Wire.read(in));
          } catch (Wire.ProtocolException error) {
            if (!error.isForgiven) {
              throw error;
            }
            hearer.refused(error);
          }
        }
      } catch (Throwable error) {
        closeSocket(); // a write that waits ends with it
        hearer.lost(error);
      }
    }, "parcae-reader");
    reader.setDaemon(true);
    reader.start();
  }

  /** Sends a message, in one piece. */
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

  /** The socket below TLS is closed: TLS itself would wait for a write to end. */
  private void closeSocket() {
    try {
      plain.close();
    } catch (IOException error) {
      // it is closed, whatever was left to be said
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
    parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate is for this host
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

  /** Reads until a deadline, however slowly the bytes come. */
  private static final class Patient extends InputStream {
    private final Socket socket;
    private final InputStream stream;
    private long deadlineNs;

    Patient(Socket socket) throws IOException {
      this.socket = socket;
      this.stream = socket.getInputStream();
    }

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
        throw new SocketTimeoutException("the service says nothing");
      }
      socket.setSoTimeout((int) leftMs);
      return stream.read(bytes, offset, length);
    }
  }
}
