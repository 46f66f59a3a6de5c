"""Compiled code that is kept: a directory of it, and the same as one file."""
