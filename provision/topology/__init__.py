"""Which GPUs and network cards of a node lie near each other, and which of them a job should get."""
