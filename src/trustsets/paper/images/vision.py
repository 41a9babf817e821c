"""What the paper's networks and images need of torchvision."""

from trustsets.extras.vision import load_torchvision

__all__ = ["models", "transforms"]

models, transforms = load_torchvision()
