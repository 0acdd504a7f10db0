"""Comparison of packing policies on drawn sequences or on logs: tuning, tables, JSON, reports."""
