"""What the studies of the papers add to Parcae; registered by an entry point."""

from __future__ import annotations

from parcae.base.extensions import Extension

EXTENSION = Extension(
    commands={"reproduce": ("parcae.papers.command:reproduce_study", "Repeat a study of a paper.")}
)
