"""Decima's compiled kernels: single decisions, whole runs, and records of runs to learn from.

Their results equal those of `network.DecimaNetwork` to within 1e-5.
"""
