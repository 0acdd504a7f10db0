"""Compiled transitions of the cluster state."""
