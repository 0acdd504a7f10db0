"""A2cScheduler (Liang et al., 2019): an actor and a critic that see an image of the cluster."""
