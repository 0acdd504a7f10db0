package parcae.spark.guest;

/** A policy file or setting that cannot be used; the message says why and what to do. */
final class PolicyException extends Exception {
  private static final long serialVersionUID = 1;

  PolicyException(String message) {
    super(message.replaceAll("\\s+", " "));
  }
}
