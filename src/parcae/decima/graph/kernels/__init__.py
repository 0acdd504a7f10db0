"""The compiled passes of Decima's network."""
