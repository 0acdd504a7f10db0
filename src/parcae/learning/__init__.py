"""Policies that are learned: tuned rules, trained networks, their loops and recipes."""
