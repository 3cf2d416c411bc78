"""Copies an image between nodes with BitTorrent: this node sends it, or receives and loads it."""
