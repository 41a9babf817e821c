"""The one place that imports torchvision.

A torchvision whose compiled library does not fit the installed torch (a CPU torch next to a
torchvision built for CUDA, say) refuses to be imported, because it describes two compiled
operators of object detection to torch, which does not know them then. Nothing here detects
objects. So where the import fails for that reason, the two operators are declared, without an
implementation, and the import is tried once more. A torchvision that fits is left alone.
"""

import sys
from importlib.util import find_spec
from typing import Any

import torch

from trustsets.errors import InputError

# Declarations end with the life of their library.
_declared: list[Any] = []


def repair_torchvision() -> None:
    """Let libraries that import torchvision, such as transformers and timm, find it usable."""
    if find_spec("torchvision") is not None:
        load_torchvision()


def load_torchvision() -> tuple[Any, Any]:
    """The modules `models` and `transforms` of torchvision."""
    try:
        return _import()
    except ModuleNotFoundError as error:
        raise InputError(
            f"images need torchvision and pillow ({error}); pip install 'trustsets[paper]'."
        ) from error
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    # What torchvision describes to torch whether or not its compiled library was loaded.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return _import()


def _import() -> tuple[Any, Any]:
    from torchvision import models, transforms

    return models, transforms
