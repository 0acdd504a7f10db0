package parcae.spark.guest;

/** The pauses between the rounds of a thread, which ends when someone else stops them. */
final class Rounds {
  private final long everyMs;
  private boolean isStopped;

  /** Takes how long a pause is. */
  Rounds(long everyMs) {
    this.everyMs = everyMs;
  }

  /** Waits for the next round; returns whether there are more, which an interrupt ends, too. */
  synchronized boolean await() {
    try {
      if (!isStopped) {
        wait(everyMs);
      }
    } catch (InterruptedException error) {
      isStopped = true;
    }
    return !isStopped;
  }

  /** Ends the pause; there are no more rounds. */
  synchronized void stop() {
    isStopped = true;
    notifyAll();
  }
}
