"""Parcae learns how to schedule the jobs of a data-processing cluster."""

__version__ = "0.1.0"
