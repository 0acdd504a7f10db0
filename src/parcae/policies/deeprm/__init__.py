"""DeepRM: one hidden layer that looks at an image of the cluster."""
