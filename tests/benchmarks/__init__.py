"""How fast many nodes are looked at; README.md says how to read the numbers."""
