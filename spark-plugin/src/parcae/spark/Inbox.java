package parcae.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * What the service says, read on a thread of its own: replies, and where applications share a cluster also what nobody asked
 * for.
 */
final class Inbox implements Runnable {
  /** Takes what the service says unasked. */
  interface Hearer {
    void hear(JsonNode message) throws IOException;
  }

  private final DataInputStream in;
  private final Runnable poke;
  private final BlockingQueue<Object> waiting = new LinkedBlockingQueue<>();

  /** Reads until the stream ends; `poke` is called whenever something was read. */
  Inbox(DataInputStream in, Runnable poke) {
    this.in = in;
    this.poke = poke;
    Thread thread = new Thread(this, "parcae-inbox");
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void run() {
    boolean isOpen = true;
    while (isOpen) {
      try {
        waiting.add(Wire.read(in));
      } catch (Wire.ProtocolException error) {
        waiting.add(error);
        isOpen = error.canSync; // it can be read on after an `error` only
      } catch (Throwable error) {
        waiting.add(error instanceof IOException ? error : new IOException(error));
        isOpen = false;
      }
      poke.run();
    }
  }

  /** The reply to request `seq`; what was said unasked before it is heard first. Replies to earlier requests are dropped. */
  JsonNode reply(long seq, int patienceMs, Hearer hearer) throws IOException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(patienceMs);
    while (true) {
      JsonNode message = checked(next(end - System.nanoTime()));
      if (isUnasked(message)) {
        hearer.hear(message);
      } else if (message.path("seq").asLong(-1) >= seq) {
        return message;
      }
    }
  }

  /** Hears what waits. */
  void drain(Hearer hearer) throws IOException {
    for (Object found = waiting.poll(); found != null; found = waiting.poll()) {
      JsonNode message = checked(found);
      if (isUnasked(message)) {
        hearer.hear(message);
      }
    }
  }

  private Object next(long patienceNs) throws IOException {
    try {
      Object found = waiting.poll(Math.max(0, patienceNs), TimeUnit.NANOSECONDS);
      if (found == null) {
        throw new SocketTimeoutException("no reply in time");
      }
      return found;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException(error);
    }
  }

  private static boolean isUnasked(JsonNode message) {
    return message.path("type").asText().equals("commands") && !message.path("seq").isNumber();
  }

  private static JsonNode checked(Object found) throws IOException {
    if (found instanceof IOException) {
      throw (IOException) found;
    }
    return (JsonNode) found;
  }
}
