"""Batch jobs as text and values: their spec, their ranks, the order in which they start, what nodes tell of them."""
