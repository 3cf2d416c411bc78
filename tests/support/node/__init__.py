"""A node of jobs in a folder, with STAND-INS for docker, systemd and nvidia-smi."""
