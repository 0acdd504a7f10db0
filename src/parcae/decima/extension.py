"""What Decima's world adds to Parcae; registered by an entry point (`parcae.base.extensions`)."""

from __future__ import annotations

from parcae.base.extensions import Extension

EXTENSION = Extension(
    policies="parcae.decima.catalog:POLICIES",
    checkpoints="parcae.decima.checkpoints:KINDS",
    readers="parcae.decima.readers:READERS",
    learners="parcae.decima.learning.world:LEARNERS",
    worlds="parcae.decima.learning.world:WORLDS",
    commands={
        "bounds": ("parcae.decima.commands:bounds", "Compute times that no schedule can beat."),
        "bench training": (
            "parcae.decima.commands:bench_training",
            "Training decisions per CPU second.",
        ),
    },
)
