"""Policies of the world of cores that plan standing orders by a formula."""
