"""What the world of rigid jobs adds to Parcae; registered by an entry point."""

from __future__ import annotations

from parcae.base.extensions import Extension

EXTENSION = Extension(
    policies="parcae.rigid.policies.catalog:POLICIES",
)
