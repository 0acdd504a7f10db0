"""Idle slots: what two jobs on one machine say of them, and a policy that knows nothing else."""
