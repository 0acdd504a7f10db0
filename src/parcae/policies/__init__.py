"""Scheduling policies: hand-made, tuned and trained ones, their catalogues and their files."""
