"""The hand-made policies, compiled: each is a pure function of the observation."""
