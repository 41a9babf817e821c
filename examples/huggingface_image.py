"""For the time being: huggingface_image."""
