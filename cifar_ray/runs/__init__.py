"""A run on disk, and its model in use: names, folders, checkpoints, predictions. No Ray."""
