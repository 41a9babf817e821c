"""For Hugging Face users: sets for an image classifier, from its pipeline.

The model here is made from a configuration and trained for a moment on scikit-learn's digits. Put
your own pipeline in its place.
"""

try:
    from trustsets.extras.transformers import pipeline_outputs  # noqa: I001
    import torch
    import transformers
    from PIL import Image
except ImportError as error:
    raise SystemExit(f"needs {error.name}: pip install 'trustsets[transformers]'") from None
import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

from trustsets import ConditionalConformal, TrustScore

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more
X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
pictures = [Image.fromarray(np.uint8(row.reshape(8, 8) * 15.9)).convert("RGB") for row in X]
processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
names = {number: f"digit {number}" for number in range(10)}
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
config = transformers.ViTConfig(
    intermediate_size=64, image_size=16, patch_size=4, id2label=names, **sizes
)
model = transformers.ViTForImageClassification(config)

pixels = processor(pictures[:800], return_tensors="pt")["pixel_values"]
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(20):
    for rows in torch.randperm(800).split(40):
        model(pixels[rows], labels=torch.tensor(y)[rows]).loss.backward()
        optimizer.step(), optimizer.zero_grad()

pipe = transformers.pipeline("image-classification", model=model, image_processor=processor)
outputs = pipeline_outputs(pipe, pictures, y, batch_size=128)  # features: what the classifier gets
trust = TrustScore().fit(outputs[:800].features, outputs[:800].labels)
predictor = ConditionalConformal(trust=trust).calibrate(outputs[800:1300])
sets = predictor.predict_set(outputs[1300:], alpha=0.05)
print(f"{sets.covers(outputs[1300:].labels).mean():.3f} covered, {sets.sizes.mean():.2f} classes")
print("the largest set:", ", ".join(sets.labels()[sets.sizes.argmax()]))
