"""A trained model on Ray Serve."""
