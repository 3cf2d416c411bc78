"""Reads the state of a node for the probe and for Ansible modules."""
