"""For the time being: pipeline_missing_values."""
