"""Directory that keeps inductor's compiled code between runs."""
