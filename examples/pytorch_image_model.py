"""How do I get logits and embeddings out of a PyTorch or timm model, and sets from them?

The network here is tiny and trained for a moment on scikit-learn's digits. Put your own model and
loaders in its place. Features are what the last linear layer gets; `features=` names another layer.
Models of timm are modules of PyTorch, and go in the same place.
"""

try:
    import torch
except ImportError:
    raise SystemExit("needs torch: pip install 'trustsets[torch]'") from None
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trustsets import ConditionalConformal, TrustScore
from trustsets.extract import extract_outputs

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
images = torch.tensor(X, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
data = TensorDataset(images, torch.tensor(y))
train, calibration, test = torch.utils.data.random_split(data, [797, 500, 500])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 32), nn.ReLU(), nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(8):
    for inputs, labels in DataLoader(train, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

outputs = {
    name: extract_outputs(model, DataLoader(part, batch_size=128))
    for name, part in {"train": train, "calibration": calibration, "test": test}.items()
}
trust = TrustScore().fit(outputs["train"].features, outputs["train"].labels)
predictor = ConditionalConformal(trust=trust).calibrate(outputs["calibration"])
sets = predictor.predict_set(outputs["test"], alpha=0.02)
print(f"{sets.covers(outputs['test'].labels).mean():.3f} covered, {sets.sizes.mean():.2f} classes")

figure, panels = plt.subplots(1, 5, figsize=(8, 2.2), layout="constrained")
for ax, i in zip(panels, sets.sizes.argsort(kind="stable")[[0, 1, -3, -2, -1]], strict=True):
    ax.imshow(test[i][0][0], cmap="gray_r")
    ax.set(title="{" + ", ".join(map(str, sets[int(i)])) + "}", xticks=[], yticks=[])
figure.savefig("sets.png")
