"""For the time being: regression_intervals."""
