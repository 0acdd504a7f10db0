"""The policy `plan`, which tries decisions in rollouts from the present state."""
