"""Training of the networks of Decima's world by gradients."""
