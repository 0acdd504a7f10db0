"""What the compiled networks have in common."""
