"""Nodes that answer with malicious values, and the command that has to survive them."""
