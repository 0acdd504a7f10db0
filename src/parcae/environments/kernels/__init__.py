"""Compiled steps and observations of the environments."""
