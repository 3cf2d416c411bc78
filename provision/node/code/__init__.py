"""Brings code to nodes: git, rsync and archives."""
