"""A stock Apache Spark under a Parcae service: the plugin, how to start it, and the proof that it does what is said."""
