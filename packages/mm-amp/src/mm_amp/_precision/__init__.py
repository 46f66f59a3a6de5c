"""Autocast, modules kept in float32, and the dtypes that a step computed in."""
