"""Models as files: checkpoints, their schema, and the description of training data."""
