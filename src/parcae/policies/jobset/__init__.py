"""A network over the set of waiting jobs: any number of them, any number of resources, any load, steps or exact times."""
