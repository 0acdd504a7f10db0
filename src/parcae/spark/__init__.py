"""Parcae in a stock Apache Spark: builds, checks and starts the plugin, and measures its effect."""
