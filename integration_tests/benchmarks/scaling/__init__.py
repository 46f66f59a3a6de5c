"""What the benchmarks of large jobs share."""
