"""Compiled arithmetic on units of resources: arrays with a number for each resource."""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined


@inlined
def copy_units(source, target):  # type: ignore[no-untyped-def]
    """Set target = source."""
    for resource in range(target.shape[0]):
        target[resource] = source[resource]


@inlined
def add_units(free, units, sign):  # type: ignore[no-untyped-def]
    """Add sign x units to the free units."""
    for resource in range(free.shape[0]):
        free[resource] += sign * units[resource]


@inlined
def fits(demand, free):  # type: ignore[no-untyped-def]
    """Return whether a demand fits into the free units."""
    for resource in range(free.shape[0]):
        if free[resource] < demand[resource]:
            return False
    return True
