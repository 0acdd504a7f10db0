"""Learned policies: tuned rules, trained networks, their training loops and recipes."""

import os

# PyTorch's threads should sleep while they wait for each other: spinning threads made training ten
# times slower where other work shared the cores. PyTorch reads this variable when it is loaded, so
# it is set here, before any module of this package imports PyTorch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
