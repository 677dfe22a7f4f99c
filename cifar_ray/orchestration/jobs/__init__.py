"""Commands submitted to a cluster as Ray jobs."""
