"""Accumulate, synchronize, clip and watch gradients."""
