"""What everything else stands on: errors, texts, files that users name, compiled kernels."""
