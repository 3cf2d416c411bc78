"""How fast many nodes are probed; README.md explains the numbers."""
