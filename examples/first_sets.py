"""For the time being: first_sets."""
