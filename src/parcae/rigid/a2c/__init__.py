"""A2cScheduler."""
