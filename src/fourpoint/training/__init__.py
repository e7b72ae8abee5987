"""Fitting models: closed forms, gradient steps, validation, and the choice among candidates."""
