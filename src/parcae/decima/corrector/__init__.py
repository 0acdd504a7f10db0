"""The network that corrects the tuned rule of Decima's world."""
