"""How kernels are compiled, and the vector products of compiled networks."""
