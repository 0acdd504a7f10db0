"""Compiled convolutions of images whose cells are 0 or 1."""
