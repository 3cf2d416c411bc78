"""The lock of a node, and its history."""
