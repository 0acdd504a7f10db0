"""Compiled training of Decima's network; `passes` begins it."""
