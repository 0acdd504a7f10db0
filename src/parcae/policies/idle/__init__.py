"""Idle slots: the theory of two jobs on one machine, and a policy that follows it."""
