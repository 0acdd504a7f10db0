"""Packing policies compared: on drawn sequences or on logs, tuned where they can be, as tables, JSON and a report."""
