"""Model wrappers for distributed training."""
