"""The parametric rule of the world of cores: orders by size, corrected for what is uncertain and for the shape of DAGs."""
