"""Workloads: jobs as immutable data, readers of logs and traces, and arrival processes."""
