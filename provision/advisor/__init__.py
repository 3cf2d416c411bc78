"""Advice on idle GPUs: rules of distributed training for a script, and checks of a running job's samples."""
