"""For the time being: timm_model."""
