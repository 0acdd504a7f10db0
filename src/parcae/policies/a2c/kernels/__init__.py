"""Compiled convolutions of images of zeros and ones."""
