"""Why a job does not use its GPUs: the rules of distributed training in a script, and what a minute of it shows."""
