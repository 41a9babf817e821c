"""For anyone whose important classes are rare.

Ordinary sets may miss a rare class most of the time and still cover 90% of all samples. The default
covers rare classes better; `per_class=True` guarantees coverage for each class, with larger sets.
"""

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs, StandardConformal, evaluate, plots

rng = np.random.default_rng(0)
shares = np.array([0.6, 0.25, 0.1, 0.04, 0.01])
labels = rng.choice(5, p=shares, size=10_000)
# A classifier that has learned the shares, and hence hardly ever says the last class.
logits = 1.5 * np.eye(5)[labels] + np.log(shares) + rng.gumbel(size=(10_000, 5))
classes = np.array([f"a share of {share:.0%}" for share in shares])
outputs = ModelOutputs(logits=logits, labels=classes[labels], classes=classes)
calibration, test = outputs.split(0.5, seed=0)

evaluations = {}
print("method                 size  " + "  ".join(f"{share:>5.0%}" for share in shares))
for name, predictor in {
    "StandardConformal": StandardConformal(),
    "ConditionalConformal": ConditionalConformal(),
    "with per_class=True": ConditionalConformal(per_class=True),
}.items():
    sets = predictor.calibrate(calibration).predict_set(test, alpha=0.1)
    evaluations[name] = evaluate(sets, test, metrics=["class"])
    hit = sets.covers(test.labels)
    each = "  ".join(f"{hit[test.labels == one].mean():>5.2f}" for one in classes)
    print(f"{name:<22} {sets.sizes.mean():.2f}  {each}")

with plots.style(medium="page"):
    axes = plots.coverage_by_group(evaluations, "class")
    axes.figure.savefig("coverage.png", bbox_inches="tight")
