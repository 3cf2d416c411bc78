"""What runs batch jobs: one interface, and an engine for each way."""
