"""Real clusters: run by `make test-clusters`."""
