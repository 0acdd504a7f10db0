"""The policy `parcae` of the executors world: a network that corrects the tuned rule.

The network is a deep set over the jobs in the system. `layout` has its features and weights,
`kernels` the compiled forward pass, `network` the same network in PyTorch for training, and
`policy` the policy object. The rule that it corrects is `parcae.policies.rule`.

Users call the policy `parcae`; the package is called what it does.
"""
