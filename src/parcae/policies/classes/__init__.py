"""What policies ask of executor classes."""
