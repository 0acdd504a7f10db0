"""Decima: a graph neural network over job DAGs that chooses a stage and a parallelism limit."""
