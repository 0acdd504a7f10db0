"""The front door: what `import parcae` offers, over the library's own functions.

Each module adapts one step of the usual way (cluster, jobs, policy, run, comparison, service) to
short calls. Nothing is computed here: the library's functions do the work.
"""
