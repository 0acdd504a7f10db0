"""Decima's graph neural network, as a policy and for training."""
