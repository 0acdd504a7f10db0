"""The parametric rule: shortest remaining work first, every job capped where another executor stops paying."""
