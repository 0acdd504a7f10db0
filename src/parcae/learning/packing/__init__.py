"""Training of packing policies: one loop, and a learner for each kind of policy."""
