"""Tensors in, tensors out: no model, no file, no state. One idea in each module."""
