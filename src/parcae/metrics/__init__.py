"""What it cost: measures computed from a run's trace."""
