"""One training that keeps a GPU busy, written for each trainer that the benchmark compares."""
