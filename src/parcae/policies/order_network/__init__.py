"""The network of the world of cores: a small deep set over jobs that corrects the rule's tiers."""
