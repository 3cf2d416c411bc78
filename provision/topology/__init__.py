"""GPU and NIC topology of a node, and the choice of GPUs for a job."""
