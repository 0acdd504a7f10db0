"""DeepRM."""
