"""What job engines share whose jobs are recorded on the queue host and supervised by our programs on the nodes."""
