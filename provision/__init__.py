"""Bring bare GPU servers to a running multi-node training job, and keep them so."""

__all__ = ["__version__"]

__version__ = "0.2.0"
