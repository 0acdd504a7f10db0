"""Compiled transitions and views of the world of rigid jobs."""
