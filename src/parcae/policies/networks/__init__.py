"""Building blocks that the learned policies' networks share."""
