package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.UnknownHostException;
import java.nio.file.FileSystemException;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The link to the service: sends what happens and receives orders.
 *
 * <p>It runs on separate threads, so that Spark's threads never wait for it. An order stays in
 * force for a limited time after the service's last message. After that there is no order until a
 * new one comes. A lost connection is opened again with growing pauses, as long as the application
 * runs.
 */
final class Link implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(Link.class);
  private static final long FIRST_PAUSE_MS = 250;
  /** A connection that lasted longer than this resets the pauses. */
  private static final long CALM_MS = 20_000;
  private static final long PING_MS = 1_000;
  private static final long REPLY_MS = 5_000;
  private static final long TICK_MS = 100;
  /** How long events are gathered before they are sent together. */
  private static final long GATHER_MS = 2;
  /** The same if nothing but task starts and ends happened. */
  private static final long GATHER_TASKS_MS = 20;
  private static final long LEAST_WAKE_MS = 10;
  /** A `state` sooner than this after the last one counts as hasty. */
  private static final long HASTE_MS = 1_000;
  private static final long GOODBYE_MS = 300;
  /** After this time without a running task under limits, the order is dropped. */
  private static final long STALL_MS = 2_000;
  private static final long WARN_PAUSE_MS = 60_000;
  /** After so many hasty `state` messages in a row the next ones are delayed. */
  private static final int MOST_HASTY = 5;
  private static final String STALL =
      "nothing ran for " + STALL_MS + " ms under its limits although tasks waited";

  private final LinkSettings settings;
  private final String applicationId;
  private final String applicationName;
  private final Picture picture;
  private final OrderHandler handler;
  private final Thread thread = new Thread(this, "parcae-link");
  private final long pingMs;
  // A caller of `wakeUp` may hold the picture's lock. To avoid a deadlock, no method of another
  // object is called while this lock is held.
  private final Object lock = new Object();
  private boolean isWoken; // this field and the next three are guarded by the lock
  private Throwable loss;
  private long wakeMs = -1; // when to ask for orders at the latest; -1 for never
  private long answeredSeq;
  private volatile boolean isStopping;
  private volatile Order order = Order.NONE;
  private volatile boolean hasOrders;
  private volatile boolean isAway;
  private volatile long renewedNs = System.nanoTime(); // the last message that renews the order
  private volatile long seq; // number of the last request
  private long movedNs = System.nanoTime(); // when the application was last seen not stalled
  private boolean isStalled;
  private volatile long requestedSeq;
  private long requestedNs;
  private long sentNs;
  private long pauseMs;
  private String problem = "it has not answered yet";
  private String warned = "";
  private long warnedNs;

  Link(
      LinkSettings settings,
      String applicationId,
      String applicationName,
      Picture picture,
      OrderHandler handler) {
    this.settings = settings;
    this.applicationId = applicationId;
    this.applicationName = applicationName;
    this.picture = picture;
    this.handler = handler;
    pingMs = Math.min(PING_MS, settings.orderTtlMs / 3);
    pauseMs = firstPauseMs();
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /** Makes the link send `bye` and end; does not wait for that. */
  void leave() {
    isStopping = true;
    wakeUp();
  }

  /** Makes the link send `bye` and end; waits for that no longer than `GOODBYE_MS`. */
  void stop() {
    leave();
    try {
      thread.join(GOODBYE_MS);
      thread.interrupt();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** Wakes the link's thread up: there is something to send or to check. */
  void wakeUp() {
    synchronized (lock) {
      isWoken = true;
      lock.notifyAll();
    }
  }

  /** Whether the service's last message is recent enough for its order to be in force. */
  boolean isFresh() {
    return hasOrders && sinceMs(renewedNs) < settings.orderTtlMs;
  }

  /** The last order that came. */
  Order order() {
    return order;
  }

  private static long sinceMs(long ns) {
    return (System.nanoTime() - ns) / 1_000_000;
  }

  @Override
  public void run() {
    boolean isReplaced = false;
    while (!isStopping && !isReplaced) {
      long start = System.nanoTime();
      try {
        runConnection();
      } catch (Throwable error) { // no error of the plugin may end Spark
        isReplaced = isReplaced(error);
        lost(error, sinceMs(start));
      }
      try {
        // The random part keeps many drivers from connecting at the same moment.
        long jitterMs = ThreadLocalRandom.current().nextLong(pauseMs / 2 + 1);
        long end = System.nanoTime() + (pauseMs - jitterMs) * 1_000_000;
        while (!isStopping && !isReplaced && System.nanoTime() < end) {
          watch();
          Thread.sleep(Math.min(TICK_MS, settings.retryMs));
        }
      } catch (InterruptedException error) {
        break;
      }
      pauseMs = Math.min(settings.retryMs, 2 * pauseMs);
    }
    if (isReplaced) {
      problem = "another driver with the id " + applicationId + " has taken this one's place";
      dropOrder(0);
    }
    picture.stopListening();
  }

  private long firstPauseMs() {
    return Math.min(FIRST_PAUSE_MS, settings.retryMs);
  }

  /** Whether the service has accepted another driver with the same id. */
  private static boolean isReplaced(Throwable error) {
    return error instanceof Wire.ProtocolException
        && ((Wire.ProtocolException) error).code.equals("replaced");
  }

  private void lost(Throwable error, long connectedMs) {
    picture.stopListening();
    if (isStopping) {
      return;
    }
    // The message of some errors is only the name of a host or of a file.
    boolean isOnlyName =
        error instanceof UnknownHostException || error instanceof FileSystemException;
    problem = error instanceof IOException && error.getMessage() != null && !isOnlyName
        ? error.getMessage()
        : String.valueOf(error);
    LOG.debug("parcae: no connection", error);
    if (connectedMs > CALM_MS) {
      pauseMs = firstPauseMs();
    }
    watch();
    if (isAway && !problemKind().equals(warned) && sinceMs(warnedNs) > WARN_PAUSE_MS) {
      LOG.warn("parcae: still no orders from {}: {}", settings.address(), problem);
      noteWarning();
    }
  }

  /** The problem without numbers, so that equal problems are logged once. */
  private String problemKind() {
    return problem.replaceAll("\\d+", "");
  }

  private void noteWarning() {
    warned = problemKind();
    warnedNs = System.nanoTime();
  }

  /** Drops an order that is too old or under which nothing runs; logs that once. */
  private void watch() {
    boolean isMoving = !isFresh() || !order.hasLimits() || !picture.isStalled();
    if (isMoving) {
      movedNs = System.nanoTime();
    } else if (sinceMs(movedNs) > STALL_MS) {
      movedNs = System.nanoTime();
      isStalled = true;
      problem = STALL;
      dropOrder(0);
    }
    dropOrder(settings.orderTtlMs);
  }

  /** Drops the order if no message renewed it for at least so long. */
  private void dropOrder(long leastMs) {
    long silentMs;
    synchronized (lock) {
      silentMs = sinceMs(renewedNs);
      if (isAway || silentMs < leastMs) {
        return;
      }
      isAway = true;
      hasOrders = false;
    }
    noteWarning();
    handler.expired(silentMs, settings.address() + ": " + problem);
  }

  /** Connects and exchanges messages until the connection or the link ends. */
  private void runConnection() throws Exception {
    int silenceMs = (int) (REPLY_MS + PING_MS);
    try (Connection connection =
        Connection.open(settings, applicationId, applicationName, silenceMs)) {
      synchronized (lock) {
        loss = null;
        wakeMs = -1;
        answeredSeq = seq;
      }
      requestedSeq = seq;
      isStalled = false;
      sentNs = System.nanoTime();
      problem = "it is connected, and sends no orders";
      LOG.debug("parcae: connected to {}", settings.address());
      picture.needState();
      connection.listen(new ServiceMessages(connection.policy()));
      sendMessages(connection);
      connection.send(Wire.message("bye"));
    }
  }

  /** Sends states, events and pings; one request at a time waits for its answer. */
  private void sendMessages(Connection connection) throws Exception {
    int hasty = 0;
    long statedNs = System.nanoTime() - HASTE_MS * 1_000_000;
    while (!isStopping) {
      watch();
      if (isStalled) {
        isStalled = false;
        throw new IOException(STALL);
      }
      await();
      boolean isAnswered = isAnswered();
      if (!isAnswered && sinceMs(requestedNs) > REPLY_MS) {
        throw new IOException("the service did not answer for " + REPLY_MS + " ms");
      }
      if (isAnswered && picture.needsState()) {
        hasty = sinceMs(statedNs) < HASTE_MS ? hasty + 1 : 0;
        if (hasty > MOST_HASTY) { // the two sides disagree; limit what that costs
          Thread.sleep(Math.min(settings.retryMs, HASTE_MS));
        }
        statedNs = System.nanoTime();
        request(connection, true);
      } else if (isAnswered && (picture.hasEvents() || isWakeDue())) {
        // Events that come together are sent together.
        Thread.sleep(picture.isUrgent() ? GATHER_MS : GATHER_TASKS_MS);
        request(connection, picture.needsState());
      } else if (sinceMs(sentNs) >= pingMs) {
        var ping = Wire.message("ping");
        seq++;
        ping.put("seq", seq);
        connection.send(ping);
        sentNs = System.nanoTime();
      }
    }
  }

  /** Sends a request, which the service answers with orders. */
  private void request(Connection connection, boolean isState) throws IOException {
    synchronized (lock) {
      wakeMs = -1;
    }
    seq++;
    requestedSeq = seq;
    requestedNs = System.nanoTime();
    connection.send(isState ? picture.takeState(seq) : picture.takeEvents(seq));
    sentNs = System.nanoTime();
  }

  /** Whether the last request was answered; throws the error with which the connection ended. */
  private boolean isAnswered() throws Exception {
    synchronized (lock) {
      if (loss instanceof Exception) {
        throw (Exception) loss;
      }
      if (loss != null) {
        throw new IOException(loss);
      }
      return answeredSeq >= requestedSeq;
    }
  }

  private boolean isWakeDue() {
    long dueMs;
    synchronized (lock) {
      dueMs = wakeMs;
    }
    return dueMs >= 0 && picture.clockNow() >= dueMs;
  }

  /** Waits until the link is woken up, a wake-up is due or a tick has passed. */
  private void await() throws InterruptedException {
    synchronized (lock) {
      long ms = Math.min(TICK_MS, pingMs);
      if (wakeMs >= 0) {
        ms = Math.max(1, Math.min(ms, wakeMs - System.currentTimeMillis()));
      }
      if (!isWoken) {
        lock.wait(ms);
      }
      isWoken = false;
    }
  }

  /** Handles the service's messages, on the reader's thread. */
  private final class ServiceMessages implements Connection.MessageHandler {
    private final String policy;

    ServiceMessages(String policy) {
      this.policy = policy;
    }

    @Override
    public void handle(JsonNode message) throws IOException {
      String type = message.path("type").asText();
      if (type.equals("pong")) {
        handlePong();
        return;
      }
      if (!type.equals("orders")) {
        throw new Wire.ProtocolException(
            "the service sent a message of the unknown type " + Wire.text(type));
      }
      Wire.Orders orders = Wire.orders(message);
      if (orders.seq > seq) {
        throw new Wire.ProtocolException(
            "the service answered request " + orders.seq + ", which was never sent");
      }
      order = orders.order;
      handler.take(orders);
      long silentMs;
      boolean isNew;
      synchronized (lock) {
        answeredSeq = Math.max(answeredSeq, orders.seq);
        wakeMs = orders.wakeMs < 0
            ? -1
            : Math.max(orders.wakeMs, System.currentTimeMillis() + LEAST_WAKE_MS);
        silentMs = sinceMs(renewedNs);
        renewedNs = System.nanoTime();
        isNew = !hasOrders;
        hasOrders = true;
        isAway = false;
      }
      if (isNew) {
        handler.back(settings.address() + ", policy " + policy, silentMs);
      }
      wakeUp();
    }

    /** Renews the order, unless a newer one was requested and has not come yet. */
    private void handlePong() {
      synchronized (lock) {
        if (hasOrders && answeredSeq >= requestedSeq) {
          renewedNs = System.nanoTime();
        }
      }
    }

    @Override
    public void refused(Wire.ProtocolException why) {
      synchronized (lock) {
        answeredSeq = Math.max(answeredSeq, requestedSeq);
      }
      LOG.info("parcae: the service asks for the whole state again ({})", why.getMessage());
      picture.needState();
      wakeUp();
    }

    @Override
    public void lost(Throwable error) {
      synchronized (lock) {
        loss = loss == null ? error : loss;
      }
      wakeUp();
    }
  }
}
