"""Programs that run on nodes, with the standard library of Python 3.6 or newer only.

`provision.node_archive` builds this package into one archive, which is copied to a node once per version and run by
its hash. `main.py` lists the programs.
"""
