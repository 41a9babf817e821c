"""For the time being: lightgbm_model."""
