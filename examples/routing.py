"""Which cases can be decided automatically, and which go to a person?

A set of one class is decided automatically; a short list goes to a person; long lists go to an
expert, a second model or an LLM. The guarantee is about all cases together: within a route,
coverage may be lower. To guarantee it in each route, fix the rule on other samples first (here,
half of the calibration samples), and then calibrate within the routes.
"""

import matplotlib.pyplot as plt
import numpy as np

from trustsets import ConditionalConformal, Groups, MondrianConformal, plots
from trustsets.demo import load

ROUTES = ["automatic", "short list", "expert"]
data = load()
first, second = data.calibration.split(0.5, seed=0, stratify=True)
rule = ConditionalConformal().calibrate(first)


def with_routes(outputs):
    """Add the route of each sample: by the size of a set that uses no label of these samples."""
    sizes = rule.predict_set(outputs, alpha=0.1).sizes
    route = np.array(ROUTES)[np.digitize(sizes, [2, 7])]
    return outputs.replace(groups={"route": route})


calibration, test = with_routes(second), with_routes(data.test)
sets = {
    "by set size alone": rule.predict_set(test, alpha=0.1),
    "calibrated within routes": MondrianConformal(by=Groups("route"))
    .calibrate(calibration)
    .predict_set(test, alpha=0.1),
}
right = test.predicted == test.labels
print(f"{'route':12} {'share':>6} {'network right':>14} " + "".join(f"{name:>26}" for name in sets))
covered = {name: [] for name in sets}
for route in ROUTES:
    inside = test.groups["route"] == route
    row = f"{route:12} {inside.mean():6.1%} {right[inside].mean():14.1%} "
    for name, predicted in sets.items():
        covered[name].append(predicted.covers(test.labels)[inside].mean())
        size = predicted.sizes[inside].mean()
        row += f"{f'{covered[name][-1]:.1%}, {size:.1f} classes':>26}"
    print(row)

with plots.style(medium="page"):
    figure, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
    for i, (name, values) in enumerate(covered.items()):
        ax.bar(np.arange(3) + 0.35 * i, values, width=0.33, label=name, color=f"C{i}")
    ax.axhline(0.9, color="0.4", lw=1)
    ax.set(xticks=np.arange(3) + 0.17, xticklabels=ROUTES, ylim=(0.7, 1.0), ylabel="coverage")
    ax.legend(loc="lower left")
    figure.savefig("coverage.png")
