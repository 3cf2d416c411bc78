"""Instances that are processes of their node, in a systemd unit."""
