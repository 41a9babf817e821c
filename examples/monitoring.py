"""For the time being: monitoring."""
