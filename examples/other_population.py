"""For the time being: other_population."""
