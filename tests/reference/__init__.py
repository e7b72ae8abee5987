"""Slow, plain versions of what the package does fast: the truth that its tests compare with."""
