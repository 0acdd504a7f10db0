"""The parametric rule of the executors world: shortest remaining work first, with a cap per job.

The cap of a job is the number of executors beyond which another executor no longer pays off.
"""
