"""Hand-made policies (heuristics) of the executors world, and their compiled kernels."""
