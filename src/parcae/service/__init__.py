"""The live scheduler: events of applications in, orders out, on the simulator's cluster state."""
