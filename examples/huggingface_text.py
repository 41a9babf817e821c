"""For the time being: huggingface_text."""
