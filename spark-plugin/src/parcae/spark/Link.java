package parcae.spark;

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
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.ThreadLocalRandom;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The conversation with the service, on a thread of its own: Spark's threads never wait for it.
 *
 * A request that is not answered in time, an answer that makes no sense or a lost connection opens the breaker: from that moment
 * on Spark schedules by itself. The thread then connects again, first soon, then less and less often, and begins with `sync`.
 */
final class Link implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(Link.class);
  private static final int CONNECT_TIMEOUT_MS = 2000;
  private static final int GREETING_TIMEOUT_MS = 5000;
  private static final int FIRST_SYNC_TIMEOUT_MS = 5000; // the service may have to make a policy ready
  private static final int SHARED_TIMEOUT_MS = 5000; // leaving costs executors, waiting little where they take seconds to come
  private static final long FIRST_PAUSE_MS = 250;
  private static final long CALM_MS = 20_000; // after so long without trouble the pauses start anew
  private static final long PING_MS = 30_000;
  private static final long STALL_MS = 2_000;
  private static final long UNUSED_STALL_MS = 10_000; // slots were lent: Spark may have reasons of its own
  private static final long LEAST_WAKE_MS = 10;
  private static final long GOODBYE_MS = 300;
  private static final long WARN_PAUSE_MS = 60_000;
  private static final int SURELY_BUFFERED_BYTES = 32 << 10;
  private static final int MOST_SYNCS = 40; // in a row without a second between them: the two sides cannot agree
  private static final int MAX_SAMPLES = 1 << 16;

  private final Books books;
  private final Settings settings;
  private final String applicationId;
  private final String applicationName;
  private final String client;
  private final Runnable revive;
  private final Thread thread = new Thread(this, "parcae-link");
  private volatile boolean isStopping;
  private volatile Socket socket;
  private volatile Timer guard;
  private DataInputStream in;
  private Patient patient;
  private OutputStream out;
  private Inbox inbox; // where the service also speaks unasked
  private int timeoutMs;
  private long seq;
  private long clockMs;
  private long wakeMs;
  private long pauseMs = FIRST_PAUSE_MS;
  private long troubleMs;
  private long stalledSinceMs;
  private long lastSyncMs;
  private int numHastySyncs;

  // For the report.
  private long numConnections;
  private long numRequests;
  private long numSyncs;
  private long numTimeouts;
  private long numTroubles;
  private boolean isReplaced;
  private String policy = "";
  private long awayMs;
  private long awaySinceMs = System.currentTimeMillis();
  private String lastTrouble = "";
  private String warned = "";
  private long warnedMs;
  private final int[] tookMicros = new int[MAX_SAMPLES];

  Link(Books books, Settings settings, String applicationId, String applicationName, String client, Runnable revive) {
    this.books = books;
    this.settings = settings;
    this.applicationId = applicationId;
    this.applicationName = applicationName;
    this.client = client;
    this.revive = revive;
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  void stop() {
    isStopping = true;
    if (books.isObeying()) {
      awaySinceMs = System.currentTimeMillis();
      books.setObeying(false);
    }
    books.wake();
    thread.interrupt();
    try {
      thread.join(GOODBYE_MS);
      Socket current = socket;
      if (thread.isAlive() && current != null) {
        current.close(); // it waits for a reply, or to connect
        thread.join(GOODBYE_MS);
      }
    } catch (IOException error) {
      LOG.debug("parcae: stop", error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  @Override
  public void run() {
    try {
      while (!isStopping && !isReplaced) {
        try {
          connect();
          converse();
        } catch (InterruptedException error) {
          break;
        } catch (Throwable error) { // nothing of ours may end Spark
          giveUp(error);
        }
        if (!isStopping && !isReplaced) {
          Thread.sleep(pauseMs + ThreadLocalRandom.current().nextLong(pauseMs / 2 + 1));
          pauseMs = Math.min(settings.retryMs, 2 * pauseMs);
        }
      }
    } catch (InterruptedException error) {
      LOG.debug("parcae: stopped", error);
    } finally {
      books.setObeying(false);
      books.needSync("nobody talks to the service any more"); // and so nothing is kept for it
      sayGoodbye();
    }
  }

  private void giveUp(Throwable error) {
    boolean wasObeying = books.isObeying();
    books.setObeying(false);
    books.needSync("no connection"); // until then nothing is kept for the service
    close();
    if (isStopping) {
      return;
    }
    long now = System.currentTimeMillis();
    if (now - troubleMs > CALM_MS) {
      pauseMs = FIRST_PAUSE_MS;
    }
    troubleMs = now;
    numTroubles++;
    lastTrouble = String.valueOf(error);
    if (error instanceof SocketTimeoutException) {
      numTimeouts++;
    }
    isReplaced = error instanceof Wire.ProtocolException && ((Wire.ProtocolException) error).code.equals("replaced");
    tellTrouble(now, wasObeying, error);
    if (wasObeying) {
      awaySinceMs = now;
      safely(revive);
    }
  }

  /** One line of warning where there is news, or a minute after the last. */
  private void tellTrouble(long now, boolean wasObeying, Throwable error) {
    String until = isReplaced ? "from now on: another driver speaks for " + applicationId : "until the service is back";
    String news = lastTrouble.replaceAll("\\d+", "");
    boolean isNew = !news.equals(warned);
    boolean isLongAgo = now - warnedMs > WARN_PAUSE_MS;
    if (isReplaced || (wasObeying && (isNew || isLongAgo)) || (isNew && isLongAgo)) {
      LOG.warn("parcae: Spark schedules by itself {} ({}:{}: {})", until, settings.host, settings.port, lastTrouble);
      warned = news;
      warnedMs = now;
    } else if (wasObeying) {
      LOG.info("parcae: Spark schedules by itself {} ({}:{}: {})", until, settings.host, settings.port, lastTrouble);
    } else {
      LOG.debug("parcae: no service", error);
    }
  }

  private void connect() throws IOException, GeneralSecurityException {
    Socket plain = new Socket();
    socket = plain;
    plain.setTcpNoDelay(true);
    plain.connect(new InetSocketAddress(settings.host, settings.port), CONNECT_TIMEOUT_MS);
    plain.setSoTimeout(GREETING_TIMEOUT_MS);
    if (!settings.trustFile.isEmpty()) {
      socket = encrypted(plain);
    }
    if (isStopping) {
      throw new IOException("stopped");
    }
    patient = new Patient(socket);
    patient.allow(GREETING_TIMEOUT_MS);
    in = new DataInputStream(new BufferedInputStream(patient, 1 << 16));
    out = socket.getOutputStream();
    String nonce = Wire.newNonce();
    Map<String, Object> hello = Wire.hello(applicationId, applicationName, client, nonce);
    Wire.write(out, hello);
    JsonNode reply = Wire.read(in);
    if (reply.path("type").asText().equals("challenge")) {
      String told = reply.path("nonce").asText();
      String id = (String) hello.get("application_id");
      if (settings.secret == null) {
        throw new IOException("the service asks for a secret: set spark.parcae.secretFile");
      }
      Map<String, Object> proof = Wire.message("proof");
      proof.put("mac", Wire.proof(settings.secret, "client", nonce, told, id));
      Wire.write(out, proof);
      reply = Wire.read(in);
      if (!Wire.isProof(reply.path("mac").asText(), Wire.proof(settings.secret, "service", nonce, told, id))) {
        throw new IOException("the service does not know the secret");
      }
    } else if (settings.secret != null) {
      throw new IOException("the service does not ask for the secret that is set here");
    }
    if (!reply.path("type").asText().equals("welcome")) {
      throw new Wire.ProtocolException("no welcome", false);
    }
    if (settings.isShared()) {
      patient.allowForEver(); // the inbox's thread waits for what comes, this one for the inbox
      inbox = new Inbox(in, books::wake);
    }
    int least = settings.isShared() ? SHARED_TIMEOUT_MS : 20;
    int advice = reply.path("timeout_ms").asInt(200);
    timeoutMs = settings.timeoutMs > 0 ? settings.timeoutMs : Math.max(least, Math.min(5000, advice));
    numConnections++;
    policy = Wire.cut(reply.path("policy").asText());
    books.needSync("a new connection");
    LOG.info("parcae: connected to {}:{}, policy {}", settings.host, settings.port, policy);
  }

  private SSLSocket encrypted(Socket plain) throws IOException, GeneralSecurityException {
    KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
    trusted.load(null, null);
    try (InputStream file = Files.newInputStream(Path.of(settings.trustFile))) {
      int number = 0;
      for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
        trusted.setCertificateEntry("ca" + number++, certificate);
      }
    }
    TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    managers.init(trusted);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, managers.getTrustManagers(), null);
    SSLSocket wrapped = (SSLSocket) context.getSocketFactory().createSocket(plain, settings.host, settings.port, true);
    SSLParameters parameters = wrapped.getSSLParameters();
    parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the certificate must be for this host
    wrapped.setSSLParameters(parameters);
    wrapped.startHandshake();
    return wrapped;
  }

  private void converse() throws IOException, InterruptedException {
    boolean isFirst = true;
    long heardMs = System.currentTimeMillis();
    wakeMs = -1;
    while (!isStopping) {
      long now = System.currentTimeMillis();
      long patience = Math.min(heardMs + PING_MS - now, STALL_MS / 2);
      books.awaitNews(wakeMs >= 0 ? Math.min(patience, wakeMs - clockNow()) : patience);
      if (isStopping) {
        return;
      }
      if (inbox != null) {
        inbox.drain(this::hear);
      }
      now = System.currentTimeMillis();
      if (isFirst && !books.hasSlots()) {
        awaySinceMs = now; // the service is there; what it is to schedule is not
      }
      if (books.isDirty() && books.hasSlots()) {
        sync(isFirst);
        isFirst = false;
      } else if (!isFirst && (books.hasNews() || (wakeMs >= 0 && clockNow() >= wakeMs))) {
        obey(ask(Wire.events(++seq, clockNow(), books.takeEvents()), timeoutMs));
      } else if (now - heardMs >= PING_MS) {
        Map<String, Object> ping = Wire.message("ping");
        ping.put("seq", seq);
        ask(ping, timeoutMs);
      } else {
        watch(now);
        continue;
      }
      watch(now);
      heardMs = System.currentTimeMillis();
    }
  }

  private void sync(boolean isFirst) throws IOException, InterruptedException {
    long now = System.currentTimeMillis();
    numHastySyncs = now - lastSyncMs < 1000 ? numHastySyncs + 1 : 0;
    lastSyncMs = now;
    if (numHastySyncs > MOST_SYNCS) {
      numHastySyncs = 0;
      throw new IOException("the service and Spark cannot agree: " + books.whyDirty());
    }
    if (numHastySyncs > 5) {
      Thread.sleep(10L * numHastySyncs);
    }
    LOG.debug("parcae: sync ({})", books.whyDirty());
    numSyncs++;
    boolean wasObeying = books.isObeying();
    try {
      Wire.Commands reply = Wire.commands(ask(books.takeSync(++seq, clockNow()), isFirst ? FIRST_SYNC_TIMEOUT_MS : timeoutMs));
      if (!wasObeying) {
        awayMs += System.currentTimeMillis() - awaySinceMs;
        books.setObeying(true);
      }
      carryOut(reply);
      safely(revive);
    } catch (Wire.ProtocolException error) {
      again(error);
    }
  }

  private void obey(JsonNode reply) throws IOException {
    if (reply == null) {
      return; // `sync` comes next
    }
    if (carryOut(Wire.commands(reply))) {
      safely(revive);
    }
  }

  /** Something that the service said unasked. */
  private void hear(JsonNode message) throws IOException {
    obey(message);
  }

  private boolean carryOut(Wire.Commands reply) {
    wakeMs = reply.wakeMs < 0 ? -1 : Math.max(reply.wakeMs, clockNow() + LEAST_WAKE_MS);
    return books.obey(reply);
  }

  /** The reply; null where the service asks for `sync`. */
  private JsonNode ask(Map<String, Object> request, int patienceMs) throws IOException {
    long start = System.nanoTime();
    if (inbox == null) {
      patient.allow(patienceMs);
    }
    send(request, patienceMs);
    try {
      JsonNode reply = inbox == null ? Wire.read(in) : inbox.reply(seq, patienceMs, this::hear);
      long told = reply.path("seq").asLong(-1);
      if (told != seq) {
        throw new Wire.ProtocolException("an answer to request " + told + " where " + seq + " was asked", false);
      }
      tookMicros[(int) (numRequests++ % MAX_SAMPLES)] = (int) Math.min(Integer.MAX_VALUE, (System.nanoTime() - start) / 1000);
      return reply;
    } catch (Wire.ProtocolException error) {
      if (request.get("type").equals("sync")) {
        throw error;
      }
      again(error);
      return null;
    }
  }

  /** A large message to a service that does not read would wait for ever: the connection is closed then. */
  private void send(Map<String, Object> request, int patienceMs) throws IOException {
    byte[] frame = Wire.frame(request);
    if (frame.length <= SURELY_BUFFERED_BYTES) {
      out.write(frame);
      out.flush();
      return;
    }
    if (guard == null) {
      guard = new Timer("parcae-guard", true);
    }
    Socket current = socket;
    TimerTask late = new TimerTask() {
      @Override
      public void run() {
        try {
          current.close();
        } catch (IOException error) {
          LOG.debug("parcae: close", error);
        }
      }
    };
    guard.schedule(late, patienceMs);
    try {
      out.write(frame);
      out.flush();
    } finally {
      late.cancel();
    }
  }

  private void again(Wire.ProtocolException error) throws Wire.ProtocolException {
    if (!error.canSync) {
      throw error;
    }
    LOG.info("parcae: the service asks for everything anew ({})", error.getMessage());
    books.needSync(error.getMessage());
  }

  /** Nothing runs, something could, and that for a while: whoever is wrong, Spark goes on by itself. */
  private void watch(long now) throws IOException {
    Books.Stall stall = books.stall();
    if (stall == Books.Stall.NONE) {
      stalledSinceMs = 0;
    } else if (stalledSinceMs == 0) {
      stalledSinceMs = now;
    } else if (now - stalledSinceMs > (stall == Books.Stall.NO_SLOT ? STALL_MS : UNUSED_STALL_MS)) {
      long took = now - stalledSinceMs;
      stalledSinceMs = 0;
      throw new IOException("nothing ran for " + took + " ms under the service's commands although tasks waited");
    } else if (stall == Books.Stall.UNUSED_SLOT) {
      safely(revive);
    }
  }

  private long clockNow() {
    clockMs = Math.max(clockMs, System.currentTimeMillis());
    return clockMs;
  }

  private static void safely(Runnable action) {
    try {
      action.run();
    } catch (Throwable error) {
      LOG.debug("parcae: reviving offers", error);
    }
  }

  private void sayGoodbye() {
    try {
      if (socket != null && out != null && !socket.isClosed()) {
        Wire.write(out, Wire.message("bye"));
      }
      if (guard != null) {
        guard.cancel();
      }
    } catch (IOException | RuntimeException error) {
      LOG.debug("parcae: bye", error);
    }
    close();
  }

  private void close() {
    try {
      if (socket != null) {
        socket.close();
      }
    } catch (IOException error) {
      LOG.debug("parcae: close", error);
    }
    socket = null;
    out = null;
    inbox = null; // its thread ends with the socket
  }

  /** What happened, in numbers. */
  Map<String, Object> report() {
    Map<String, Object> report = new LinkedHashMap<>();
    int[] sorted = Arrays.copyOf(tookMicros, (int) Math.min(numRequests, MAX_SAMPLES));
    Arrays.sort(sorted);
    report.put("service", settings.host + ":" + settings.port);
    report.put("policy", policy);
    report.put("connections", numConnections);
    report.put("is_replaced", isReplaced);
    report.put("requests", numRequests);
    report.put("syncs", numSyncs);
    report.put("timeouts", numTimeouts);
    report.put("troubles", numTroubles);
    report.put("last_trouble", lastTrouble);
    report.put("away_ms", awayMs + (books.isObeying() ? 0 : System.currentTimeMillis() - awaySinceMs));
    report.putAll(books.report());
    for (int percent : new int[] {50, 90, 99}) {
      report.put("request_p" + percent + "_ms", sorted.length == 0 ? null : sorted[(sorted.length - 1) * percent / 100] / 1e3);
    }
    return report;
  }

  /** Reads until a deadline, however slowly the bytes come. */
  private static final class Patient extends InputStream {
    private final Socket socket;
    private final InputStream stream;
    private long deadline;
    private boolean isForEver;

    Patient(Socket socket) throws IOException {
      this.socket = socket;
      this.stream = socket.getInputStream();
    }

    void allow(int ms) {
      deadline = System.nanoTime() + ms * 1_000_000L;
    }

    void allowForEver() {
      isForEver = true;
    }

    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 255;
    }

    @Override
    public int read(byte[] bytes, int offset, int length) throws IOException {
      long leftMs = (deadline - System.nanoTime()) / 1_000_000;
      if (leftMs <= 0 && !isForEver) {
        throw new SocketTimeoutException("no reply in time");
      }
      socket.setSoTimeout(isForEver ? 0 : (int) leftMs);
      return stream.read(bytes, offset, length);
    }
  }
}
