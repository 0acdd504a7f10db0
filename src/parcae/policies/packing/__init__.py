"""Policies for packing rigid jobs: hand-made ones, and what all share."""
