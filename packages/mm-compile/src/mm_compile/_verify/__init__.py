"""Compiled code compared with eager code, in the first calls."""
