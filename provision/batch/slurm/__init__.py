"""Jobs in Slurm, without input or output: its states, its reasons, host lists and the payload of a batch script."""
