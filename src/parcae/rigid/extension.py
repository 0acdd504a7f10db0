"""What the world of rigid jobs adds to Parcae; registered by an entry point."""

from __future__ import annotations

from parcae.base.extensions import Extension

_COMMANDS = "parcae.rigid.commands"
EXTENSION = Extension(
    policies="parcae.rigid.policies.catalog:POLICIES",
    commands={
        "simulate --world rigid": (f"{_COMMANDS}:simulate", "Run rigid jobs."),
        "compare --world rigid": (f"{_COMMANDS}:compare", "Compare policies of rigid jobs."),
        "train --world rigid": (f"{_COMMANDS}:train", "Train a policy of rigid jobs."),
        "tune --world rigid": (f"{_COMMANDS}:tune", "Tune a policy of rigid jobs."),
        "policies --world rigid": (f"{_COMMANDS}:policies", "List the policies of rigid jobs."),
        "workload describe --world rigid": (f"{_COMMANDS}:describe", "Describe a log."),
        "bench rigid": (f"{_COMMANDS}:bench", "Steps and decisions for rigid jobs."),
    },
)
