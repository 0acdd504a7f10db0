"""The Spark plugin and what stands around it."""
