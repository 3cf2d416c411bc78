"""A Slurm cluster that is configured by hand, as plain files: what a site without our role may have."""
