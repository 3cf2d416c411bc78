"""Jobs of an ordinary user on a Slurm cluster that others manage, from a login node and without root."""
