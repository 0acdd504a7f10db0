"""Idle slots (Duan and Wu): their theory, and the policy that follows it."""
