"""Decima, compiled: a decision, whole runs, records to learn from. Equal to `network.DecimaNetwork` to 1e-5."""
