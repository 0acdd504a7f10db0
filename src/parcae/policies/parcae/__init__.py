"""The stronger network: learned corrections of the tuned rule, a deep set over jobs."""
