"""What is known: the cluster's state, its transitions, observations and decisions."""
