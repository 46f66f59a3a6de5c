"""Where and how the processes of a job meet: torch's store at the address of rank 0."""
