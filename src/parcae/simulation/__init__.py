"""When it happens: the event loop that fires a workload's events at a cluster state."""
