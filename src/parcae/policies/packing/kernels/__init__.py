"""Compiled heuristics for packing rigid jobs."""
