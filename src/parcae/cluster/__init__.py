"""The cluster's state, its transitions, observations, decisions and orders."""
