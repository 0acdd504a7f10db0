"""The policy `plan`: it tries its decisions in rollouts of a base policy before it makes them."""
