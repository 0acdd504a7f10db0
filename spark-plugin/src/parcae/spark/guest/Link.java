package parcae.spark.guest;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The conversation with the service, on threads of its own: Spark's never wait for it.
 *
 * <p>It says what happens and hears orders. An order counts for a while after the service's last
 * word; then, and until orders come again, there is none. What is lost is connected again, first
 * soon, then less and less often, for as long as the application lives.
 */
final class Link implements Runnable {
  private static final Logger LOG = LoggerFactory.getLogger(Link.class);
  private static final long FIRST_PAUSE_MS = 250;
  private static final long CALM_MS = 20_000; // after so long connected the pauses start anew
  private static final long PING_MS = 1_000;
  private static final long REPLY_MS = 5_000;
  private static final long TICK_MS = 100;
  private static final long GATHER_MS = 2;
  private static final long GATHER_TASKS_MS = 20;
  private static final long LEAST_WAKE_MS = 10;
  private static final long HASTE_MS = 1_000; // a `state` so soon after the last is put off
  private static final long GOODBYE_MS = 300;
  private static final long STALL_MS = 2_000;
  private static final long WARN_PAUSE_MS = 60_000;
  private static final int MOST_HASTY = 5;
  private static final String STALL =
      "nothing ran for " + STALL_MS + " ms under its limits although tasks waited";

  private final LinkSettings settings;
  private final String applicationId;
  private final String applicationName;
  private final Picture picture;
  private final Taker taker;
  private final Thread thread = new Thread(this, "parcae-link");
  private final long pingMs;
  // Whoever rings may hold the picture's lock: nothing is called under this one.
  private final Object lock = new Object();
  private boolean isRung; // from here on under the lock
  private Throwable loss;
  private long wakeMs = -1;
  private long answeredSeq;
  private volatile boolean isStopping;
  private volatile Order order = Order.NONE;
  private volatile boolean hasOrders;
  private volatile boolean isAway;
  private volatile long heardNs = System.nanoTime();
  private volatile long seq;
  private long movedNs = System.nanoTime();
  private boolean isStalled;
  private volatile long askedSeq;
  private long askedNs;
  private long sentNs;
  private long pauseMs = FIRST_PAUSE_MS;
  private String trouble = "nothing was heard of it yet";
  private String warned = "";
  private long warnedNs;

  /** What becomes of orders. */
  interface Taker {
    /** Orders came. */
    void take(Wire.Orders orders);

    /** There were none for so long, for a reason that is a part of a sentence. */
    void expired(long silentMs, String why);

    /** The first ones come, or the first ones after that. */
    void back(String from, long silentMs);
  }

  Link(
      LinkSettings settings,
      String applicationId,
      String applicationName,
      Picture picture,
      Taker taker) {
    this.settings = settings;
    this.applicationId = applicationId;
    this.applicationName = applicationName;
    this.picture = picture;
    this.taker = taker;
    pingMs = Math.min(PING_MS, settings.orderTtlMs / 3);
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /** Says goodbye and ends; nobody waits for that. */
  void leave() {
    isStopping = true;
    ring();
  }

  /** Says goodbye and ends; waits no longer than a moment. */
  void stop() {
    leave();
    try {
      thread.join(GOODBYE_MS);
      thread.interrupt();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** There is something to be said. */
  void ring() {
    synchronized (lock) {
      isRung = true;
      lock.notifyAll();
    }
  }

  /** Whether the service's last word is so fresh that its orders count. */
  boolean isFresh() {
    return hasOrders && sinceMs(heardNs) < settings.orderTtlMs;
  }

  /** The last order. */
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
        converse();
      } catch (Throwable error) { // nothing of ours may end Spark
        isReplaced = isReplaced(error);
        lost(error, sinceMs(start));
      }
      try {
        long end = System.nanoTime() + (pauseMs + random(pauseMs / 2)) * 1_000_000;
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
      trouble = "another driver speaks for " + applicationId + ", and this one is left alone";
      away(0);
    }
    picture.stopListening();
  }

  private static long random(long bound) {
    return ThreadLocalRandom.current().nextLong(bound + 1);
  }

  private static boolean isReplaced(Throwable error) {
    return error instanceof Wire.ProtocolException
        && ((Wire.ProtocolException) error).code.equals("replaced");
  }

  private void lost(Throwable error, long connectedMs) {
    picture.stopListening();
    if (isStopping) {
      return;
    }
    trouble = error instanceof IOException && error.getMessage() != null
        ? error.getMessage()
        : String.valueOf(error);
    LOG.debug("parcae: no connection", error);
    if (connectedMs > CALM_MS) {
      pauseMs = FIRST_PAUSE_MS;
    }
    watch();
    if (isAway && !kind().equals(warned) && sinceMs(warnedNs) > WARN_PAUSE_MS) {
      LOG.warn("parcae: still no orders from {}: {}", settings.address(), trouble);
      noteWarning();
    }
  }

  private String kind() {
    return trouble.replaceAll("\\d+", "");
  }

  private void noteWarning() {
    warned = kind();
    warnedNs = System.nanoTime();
  }

  /** Drops orders that are too old, and such under which nothing runs: says so once. */
  private void watch() {
    boolean isMoving = !isFresh() || !order.hasLimits() || !picture.isStalled();
    if (isMoving) {
      movedNs = System.nanoTime();
    } else if (sinceMs(movedNs) > STALL_MS) {
      movedNs = System.nanoTime();
      isStalled = true;
      trouble = STALL;
      away(0);
    }
    away(settings.orderTtlMs);
  }

  /** Drops the order if nothing was heard for at least so long. */
  private void away(long leastMs) {
    long silentMs;
    synchronized (lock) {
      silentMs = sinceMs(heardNs);
      if (isAway || silentMs < leastMs) {
        return;
      }
      isAway = true;
      hasOrders = false;
    }
    noteWarning();
    taker.expired(silentMs, settings.address() + ": " + trouble);
  }

  private void converse() throws Exception {
    int silenceMs = (int) (REPLY_MS + PING_MS);
    try (Connection connection =
        Connection.open(settings, applicationId, applicationName, silenceMs)) {
      synchronized (lock) {
        loss = null;
        wakeMs = -1;
        answeredSeq = seq;
      }
      askedSeq = seq;
      isStalled = false;
      sentNs = System.nanoTime();
      trouble = "it was connected, and gave no orders";
      LOG.debug("parcae: connected to {}", settings.address());
      picture.needState();
      connection.listen(new Ear(connection.policy()));
      speak(connection);
      connection.send(Wire.message("bye"));
    }
  }

  private void speak(Connection connection) throws Exception {
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
      if (!isAnswered && sinceMs(askedNs) > REPLY_MS) {
        throw new IOException("no answer for " + REPLY_MS + " ms");
      }
      if (isAnswered && picture.needsState()) {
        hasty = sinceMs(statedNs) < HASTE_MS ? hasty + 1 : 0;
        if (hasty > MOST_HASTY) { // the two sides do not agree; that must not cost much
          Thread.sleep(Math.min(settings.retryMs, HASTE_MS));
        }
        statedNs = System.nanoTime();
        ask(connection, true);
      } else if (isAnswered && (picture.hasNews() || isWakeDue())) {
        Thread.sleep(picture.isUrgent() ? GATHER_MS : GATHER_TASKS_MS);
        ask(connection, picture.needsState());
      } else if (sinceMs(sentNs) >= pingMs) {
        var ping = Wire.message("ping");
        seq++;
        ping.put("seq", seq);
        connection.send(ping);
        sentNs = System.nanoTime();
      }
    }
  }

  private void ask(Connection connection, boolean isState) throws IOException {
    synchronized (lock) {
      wakeMs = -1;
    }
    seq++;
    askedSeq = seq;
    askedNs = System.nanoTime();
    connection.send(isState ? picture.takeState(seq) : picture.takeEvents(seq));
    sentNs = System.nanoTime();
  }

  private boolean isAnswered() throws Exception {
    synchronized (lock) {
      if (loss instanceof Exception) {
        throw (Exception) loss;
      }
      if (loss != null) {
        throw new IOException(loss);
      }
      return answeredSeq >= askedSeq;
    }
  }

  private boolean isWakeDue() {
    long dueMs;
    synchronized (lock) {
      dueMs = wakeMs;
    }
    return dueMs >= 0 && picture.clockNow() >= dueMs;
  }

  private void await() throws InterruptedException {
    synchronized (lock) {
      long ms = TICK_MS;
      if (wakeMs >= 0) {
        ms = Math.max(1, Math.min(ms, wakeMs - System.currentTimeMillis()));
      }
      if (!isRung) {
        lock.wait(ms);
      }
      isRung = false;
    }
  }

  /** Hears the service, on the reader's thread. */
  private final class Ear implements Connection.Hearer {
    private final String policy;

    Ear(String policy) {
      this.policy = policy;
    }

    @Override
    public void hear(JsonNode message) throws IOException {
      String type = message.path("type").asText();
      if (type.equals("pong")) {
        hearPong();
        return;
      }
      if (!type.equals("orders")) {
        throw new Wire.ProtocolException("a message of the type " + Wire.text(type));
      }
      Wire.Orders orders = Wire.orders(message);
      if (orders.seq > seq) {
        throw new Wire.ProtocolException("an answer to request " + orders.seq + ", never asked");
      }
      order = orders.order;
      taker.take(orders);
      long silentMs;
      boolean isNew;
      synchronized (lock) {
        answeredSeq = Math.max(answeredSeq, orders.seq);
        wakeMs = orders.wakeMs < 0
            ? -1
            : Math.max(orders.wakeMs, System.currentTimeMillis() + LEAST_WAKE_MS);
        silentMs = sinceMs(heardNs);
        heardNs = System.nanoTime();
        isNew = !hasOrders;
        hasOrders = true;
        isAway = false;
      }
      if (isNew) {
        taker.back(settings.address() + ", policy " + policy, silentMs);
      }
      ring();
    }

    /** An order stays in force by it unless the service owes us a newer one. */
    private void hearPong() {
      synchronized (lock) {
        if (hasOrders && answeredSeq >= askedSeq) {
          heardNs = System.nanoTime();
        }
      }
    }

    @Override
    public void refused(Wire.ProtocolException why) {
      synchronized (lock) {
        answeredSeq = Math.max(answeredSeq, askedSeq);
      }
      LOG.info("parcae: the service asks for everything anew ({})", why.getMessage());
      picture.needState();
      ring();
    }

    @Override
    public void lost(Throwable error) {
      synchronized (lock) {
        loss = loss == null ? error : loss;
      }
      ring();
    }
  }
}
