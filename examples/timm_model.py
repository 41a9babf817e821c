"""For timm users: logits and pre-logits of a model over a loader, and sets from them.

The model here is the smallest one of timm, trained for a moment on scikit-learn's digits. Put your
own model and loader in its place.
"""

try:
    import timm
    import torch
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision of another torch
    raise SystemExit(f"needs timm and a torchvision that fits torch ({error})") from None
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch.utils.data import DataLoader, TensorDataset

from trustsets import ConditionalConformal, TrustScore
from trustsets.extract import extract_outputs

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more
X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
images = torch.tensor(X, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0
images = torch.nn.functional.interpolate(images, scale_factor=4)
train = TensorDataset(images[:800], torch.tensor(y[:800]))

model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(4):
    for inputs, labels in DataLoader(train, batch_size=40, shuffle=True):
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step(), optimizer.zero_grad()

everything = DataLoader(TensorDataset(images, torch.tensor(y)), batch_size=128)
outputs = extract_outputs(model, everything)  # features: what the last linear layer gets
trust = TrustScore().fit(outputs[:800].features, outputs[:800].labels)
predictor = ConditionalConformal(trust=trust).calibrate(outputs[800:1300])
sets = predictor.predict_set(outputs[1300:], alpha=0.02)
print(f"{sets.covers(outputs[1300:].labels).mean():.3f} covered, {sets.sizes.mean():.2f} classes")
