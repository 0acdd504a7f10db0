"""A network over the set of waiting jobs.

It works with any number of jobs and resources, at any load, in time steps or with exact times.
"""
