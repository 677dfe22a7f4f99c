"""What a Ray cluster file must hold beyond Ray's own schema. Pure: knows neither Ray nor a cloud's library."""
