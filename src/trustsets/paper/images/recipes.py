"""How the two networks of the paper that are not public are trained.

Fitzpatrick 17k: the paper names the training script of the dataset's authors, 50 epochs, and a
ResNet-18. So: the weights of the ImageNet network are frozen (its batch statistics adapt) and two
new layers are trained, with Adam at 0.001 divided by ten every 7 epochs, 256 images a step, classes
drawn equally often, and that script's augmentation. Unlike that script, the last epoch is kept, and
not the one that does best on held-out images, because those calibrate and test here.

Places365: the paper says only that a ResNet-152 starts from ImageNet and is fine-tuned on the
training images. Here: all layers, stochastic gradient descent with momentum, a rate that falls to
zero along a cosine, random crops and mirroring.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from trustsets.errors import InputError
from trustsets.paper.images.pictures import Transform
from trustsets.paper.images.vision import transforms

__all__ = ["RECIPES", "Recipe"]


@final
@dataclass(frozen=True)
class Recipe:
    """Everything that determines a training besides data and seed.

    Attributes
    ----------
    optimizer : str
        ``"adam"`` or ``"sgd"`` (momentum 0.9, weight decay 0.0001).
    schedule : str
        ``"steps"``: a tenth every 7 epochs; ``"cosine"``: to zero at the end.
    epochs, batch_size, learning_rate
        Of the training.
    head_only : bool
        Train the last layers only.
    balanced : bool
        Draw images with replacement, each class equally often; otherwise each image once.
    augmentation : str
        ``"skin"`` or ``"scene"``.
    """

    optimizer: str
    schedule: str
    epochs: int
    batch_size: int
    learning_rate: float
    head_only: bool
    balanced: bool
    augmentation: str

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not 0.0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be positive; got {self.learning_rate}.")

    def rate(self, epoch: int, done: float) -> float:
        """Learning rate in an epoch (from 0) with a share of the whole training done."""
        if self.schedule == "steps":
            return self.learning_rate * float(STEP_FACTOR ** (epoch // STEP_EPOCHS))
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make a fresh optimiser."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate)
        return torch.optim.SGD(
            parameters, lr=self.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )

    def transform(self, size: int) -> Transform:
        """Augmentation to images of one size."""
        steps = [transforms.RandomResizedCrop(size)]
        if self.augmentation == "skin":  # a larger crop, trimmed after the rotation
            larger = round(SKIN_MARGIN * size)
            steps = [transforms.RandomResizedCrop(larger, scale=(0.8, 1.0))]
            steps.append(transforms.RandomRotation(15))
        steps += [transforms.RandomHorizontalFlip(), transforms.CenterCrop(size)]
        augment: Transform = transforms.Compose([*steps, transforms.PILToTensor()])
        return augment


STEP_EPOCHS = 7
STEP_FACTOR = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
SKIN_MARGIN = 256 / 224

RECIPES = {
    "fitzpatrick17k": Recipe(
        optimizer="adam",
        schedule="steps",
        epochs=50,
        batch_size=256,
        learning_rate=1e-3,
        head_only=True,
        balanced=True,
        augmentation="skin",
    ),
    "places365": Recipe(
        optimizer="sgd",
        schedule="cosine",
        epochs=10,
        batch_size=256,
        learning_rate=0.01,
        head_only=False,
        balanced=False,
        augmentation="scene",
    ),
}
"""Recipes by the name of the dataset."""
