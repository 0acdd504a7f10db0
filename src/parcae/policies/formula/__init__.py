"""Policies of one's own that are a formula: `formula: max(rem + 2 * overdraft, rem / 10)`."""
