"""Decima: a graph neural network over the jobs' DAGs, a stage and a parallelism limit for every decision."""
