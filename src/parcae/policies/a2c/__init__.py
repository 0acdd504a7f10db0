"""A2cScheduler: actor and critic that look at an image of the cluster (Liang et al., 2019)."""
