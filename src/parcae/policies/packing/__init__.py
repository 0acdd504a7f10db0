"""Policies for packing rigid jobs: heuristics, and the interface that all of them share."""
