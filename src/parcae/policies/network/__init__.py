"""The network of the world of cores, which moves the rule's tiers."""
