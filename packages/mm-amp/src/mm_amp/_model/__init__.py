"""Names, parameters and tensors of models."""
