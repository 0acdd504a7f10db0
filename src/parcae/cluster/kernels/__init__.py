"""Compiled transitions of the cluster's state."""
