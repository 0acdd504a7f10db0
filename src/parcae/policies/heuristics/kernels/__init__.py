"""The compiled hand-made policies: each decision is a pure function of the observation."""
