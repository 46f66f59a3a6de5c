"""Collectives under MMEngine's names, right in a single process too."""
