"""DeepRM: a network with one hidden layer that decides by an image of the cluster."""
