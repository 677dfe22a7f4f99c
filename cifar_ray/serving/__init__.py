"""A trained model over HTTP, without Ray."""
