"""Compiled transitions, views and images of packing clusters."""
