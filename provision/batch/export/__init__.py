"""Export of jobs as Kubernetes manifests, Slurm scripts and shell scripts, and import of manifests."""
