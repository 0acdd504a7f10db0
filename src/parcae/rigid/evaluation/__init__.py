"""Comparisons in the world of rigid jobs."""
