"""Spark's event logs, from their files to a workload or to the record of a run."""
