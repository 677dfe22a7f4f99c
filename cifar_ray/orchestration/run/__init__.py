"""One run on Ray, from its configuration to its result."""
