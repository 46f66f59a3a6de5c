"""One small training, written for each trainer that the benchmark compares."""
