"""Outputs of a timm model over a loader. Needs the extra ``trustsets[timm]``."""

from collections.abc import Iterable
from typing import Any, final

from torch import Tensor, nn

from trustsets.errors import InputError
from trustsets.extras import torch as torch_outputs
from trustsets.extras.pooling import Features
from trustsets.extras.vision import repair_torchvision
from trustsets.outputs import ModelOutputs

repair_torchvision()  # timm imports it

__all__ = ["extract_outputs"]


def extract_outputs(
    model: nn.Module, loader: Iterable[Any], *, features: Features = "pre_logits", **options: Any
) -> ModelOutputs:
    """Run a timm classifier over a loader and keep its logits, features and labels.

    Parameters
    ----------
    model : torch.nn.Module
        From ``timm.create_model``: it has ``forward_features`` and ``forward_head``.
    loader : iterable of batches
        ``(images, labels)``, images alone, or mappings; see
        `trustsets.extras.torch.extract_outputs`.
    features : str or function
        ``"pre_logits"`` are what the last layer of the head gets, pooled as the model does.
        Other policies, and functions, apply to what ``forward_features`` gives: tokens, or
        feature maps of shape (n, channels, height, width).
    **options
        Those of `trustsets.extras.torch.extract_outputs`, without `layer`.

    Examples
    --------
    >>> import timm, torch
    >>> model = timm.create_model("test_vit", num_classes=3)
    >>> loader = [(torch.rand(4, 3, 160, 160), torch.tensor([0, 1, 2, 0]))]
    >>> extract_outputs(model, loader)
    ModelOutputs(n=4, K=3, d=64, labels)
    """
    if not all(
        callable(getattr(model, name, None)) for name in ("forward_features", "forward_head")
    ):
        raise InputError(
            f"model must have forward_features and forward_head, as models of timm do; a "
            f"{type(model).__name__} has not. Use trustsets.extras.torch.extract_outputs."
        )
    if getattr(model, "num_classes", None) == 0:
        raise InputError("the model has no classifier; create it with num_classes= of your task.")
    layer, policy = ("pre_logits", None) if features == "pre_logits" else ("features", features)
    return torch_outputs.extract_outputs(_Parts(model), loader, layer, features=policy, **options)


@final
class _Parts(nn.Module):
    """A timm model that returns its features together with its logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.model.forward_features(x)
        last = str(getattr(self.model, "output_fmt", "")).endswith("NHWC") and features.ndim == 4
        return {
            "logits": self.model.forward_head(features),
            "pre_logits": self.model.forward_head(features, pre_logits=True),
            "features": features.permute(0, 3, 1, 2) if last else features,
        }
