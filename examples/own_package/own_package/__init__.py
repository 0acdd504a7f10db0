"""A policy `aged` and a learner of its weights: a package that adds both to Parcae.

pip install ./examples/own_package
parcae compare toy --policies fair,aged --jobs 10
parcae train toy --network aged --jobs 10 --iterations 10 -o training
parcae compare toy --policies fair,training/best.safetensors --jobs 10
"""

from parcae.base.extensions import Extension

EXTENSION = Extension(
    policies="own_package.policy:POLICIES",
    checkpoints="own_package.policy:KINDS",
    learners="own_package.learner:LEARNERS",
)
