"""Packages, repositories and nodes of the contract suite: tests/integration/test_package_managers.py."""
