package parcae.spark.guest;

/** Handles the orders that a {@link Link} receives. */
interface OrderHandler {
  /** Orders came. */
  void take(Wire.Orders orders);

  /** No orders came for so long. The reason is a phrase for a log line. */
  void expired(long silentMs, String why);

  /** Orders come for the first time, or for the first time after `expired`. */
  void back(String from, long silentMs);
}
