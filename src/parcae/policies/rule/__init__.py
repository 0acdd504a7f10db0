"""The rule of the world of cores: a job's tier is a sum of features times parameters."""
