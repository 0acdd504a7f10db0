"""Compiled functions of Decima's world that no policy owns."""
