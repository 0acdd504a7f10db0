"""Compiled packing policies."""
