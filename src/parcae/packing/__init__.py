"""The packing world: a cluster that runs rigid jobs, in time steps or from event to event.

It offers the state, its transitions, and the view on which policies decide.
"""
