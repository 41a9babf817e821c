"""timm models of every kind of head: what the last layer gets is what is kept."""

import numpy as np
import pytest
import torch
from torch import nn

from trustsets import InputError
from trustsets.extras.timm import extract_outputs

# After trustsets, which lets an odd torchvision be imported.
timm = pytest.importorskip("timm")

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = torch.tensor([0, 1, 2, 0])


def swin():
    """Its feature maps have the channels last."""
    return timm.models.swin_transformer.SwinTransformer(
        img_size=32, embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=4, num_classes=3
    )


MODELS = {
    "vit": (lambda: timm.create_model("test_vit", num_classes=3), 160),
    "resnet": (lambda: timm.create_model("test_resnet", num_classes=3), 64),
    "convnext": (lambda: timm.create_model("test_convnext", num_classes=3), 64),
    "swin": (swin, 32),
}


def build(kind):
    torch.manual_seed(0)
    make, size = MODELS[kind]
    return make(), torch.rand(4, 3, size, size)


@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_what_the_last_layer_gets(kind):
    model, x = build(kind)
    loader = [(x[:3], LABELS[:3]), (x[3:], LABELS[3:])]
    found = extract_outputs(model, loader)
    model.eval()
    with torch.no_grad():
        logits = model(x).numpy()
        head = model.get_classifier()
        np.testing.assert_allclose(
            head(torch.tensor(found.features)).numpy(), logits, rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(found.logits, logits, rtol=1e-4, atol=1e-5)
    named = extract_outputs(model, [{"image": x, "label": LABELS}])
    np.testing.assert_allclose(named.features, found.features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("vit", "cls"), ("vit", "mean"), ("resnet", "pool"), ("convnext", "pool"), ("swin", "pool")],
)
def test_other_policies_apply_to_the_feature_map(kind, policy):
    model, x = build(kind)
    found = extract_outputs(model, [(x, LABELS)], features=policy)
    with torch.no_grad():
        values = model.eval().forward_features(x)
    if kind == "vit":
        expected = values[:, 0] if policy == "cls" else values.mean(1)
    else:
        expected = values.mean((1, 2) if kind == "swin" else (2, 3))
    assert found.features.shape[1] == model.num_features
    np.testing.assert_allclose(found.features, expected, rtol=1e-4, atol=1e-5)


def test_mistakes_are_named():
    model, x = build("resnet")
    with pytest.raises(InputError, match=r"a Linear has not\. Use trustsets.extras.torch"):
        extract_outputs(nn.Linear(2, 2), [x])
    with pytest.raises(InputError, match=r"needs values of shape \(n, tokens, d\)"):
        extract_outputs(model, [x], features="cls")
    headless = timm.create_model("test_resnet", num_classes=0)
    with pytest.raises(InputError, match="the model has no classifier"):
        extract_outputs(headless, [x])
    with pytest.raises(InputError, match="features must be one of"):
        extract_outputs(model, [x], features="pre-logits")
