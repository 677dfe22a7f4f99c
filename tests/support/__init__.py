"""What several tests need: clusters, hosts, stores, training on ranks."""
