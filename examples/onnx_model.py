"""For the time being: onnx_model."""
