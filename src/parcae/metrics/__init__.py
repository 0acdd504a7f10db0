"""Metrics computed from the record of a run."""
