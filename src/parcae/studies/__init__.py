"""Complete workflows: from a workload to a learned policy and a report, and the papers' studies."""
