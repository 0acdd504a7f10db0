"""Who decides."""
