"""Whole circles: from a cluster's logs to a policy and a report, and the papers' own studies."""
