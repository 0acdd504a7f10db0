"""The parametric rule of the world of cores: least remaining work first, with learned corrections.

The corrections account for uncertain estimates and for the shape of the jobs' DAGs.
"""
