"""The compiled event loops, the event queue and the draws of task durations."""
