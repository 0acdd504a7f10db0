"""Comparisons, statistics, plots and reports."""
