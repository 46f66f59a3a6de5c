"""Name the rank that failed first, and the rank that the others wait for."""
