"""Are rare classes covered?

With split conformal sets, a rare class may be missed most of the time while 90% of all samples are
covered. The default up-weights rare classes; `per_class=True` guarantees coverage given each class.
"""

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs, StandardConformal, evaluate, plots

rng = np.random.default_rng(0)
prevalence = np.array([0.6, 0.25, 0.1, 0.04, 0.01])
labels = rng.choice(5, p=prevalence, size=10_000)
# A classifier that has learned the prevalences, and hence hardly ever predicts the last class.
logits = 1.5 * np.eye(5)[labels] + np.log(prevalence) + rng.gumbel(size=(10_000, 5))
classes = np.array([f"prevalence {share:.0%}" for share in prevalence])
outputs = ModelOutputs(logits=logits, labels=classes[labels], classes=classes)
calibration, test = outputs.split(0.5, seed=0)

evaluations = {}
print("coverage by class      size  " + "  ".join(f"{share:>5.0%}" for share in prevalence))
for name, predictor in {
    "StandardConformal": StandardConformal(),
    "ConditionalConformal": ConditionalConformal(),
    "with per_class=True": ConditionalConformal(per_class=True),
}.items():
    sets = predictor.calibrate(calibration).predict_set(test, alpha=0.1)
    evaluations[name] = evaluate(sets, test, metrics=["class"])
    covered = sets.covers(test.labels)
    cells = "  ".join(f"{covered[test.labels == label].mean():>5.2f}" for label in classes)
    print(f"{name:<22} {sets.sizes.mean():.2f}  {cells}")

with plots.style(medium="page"):
    axes = plots.coverage_by_group(evaluations, "class")
    axes.figure.savefig("coverage.png", bbox_inches="tight")
