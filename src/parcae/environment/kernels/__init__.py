"""Compiled kernels of the environments."""
