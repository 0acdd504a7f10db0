"""Hand-made policies."""
