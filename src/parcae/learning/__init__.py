"""Policies that are learned: tuned rules, trained networks, their loops and recipes."""

import os

# PyTorch's threads should sleep while they wait for each other: where other work shares the cores, spinning ones made training
# ten times slower. It counts only if it is set before PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
