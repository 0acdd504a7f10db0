"""The simulator: event loops that apply a workload's events to a cluster state."""
