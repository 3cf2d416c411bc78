"""The stack of a node: what it consists of, how it differs from a lock, what is known not to work, and predictions."""
