"""Functions about executor classes that several policies share."""
