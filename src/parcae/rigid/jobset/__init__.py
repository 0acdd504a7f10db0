"""The set network, which reads the waiting jobs as a set."""
