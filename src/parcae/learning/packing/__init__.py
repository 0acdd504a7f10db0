"""Training of packing policies: one training loop, and a learner for each kind of policy."""
