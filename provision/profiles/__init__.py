"""What a job needs to be told so that it uses the hardware: NCCL environments per fabric, presets of command lines."""
