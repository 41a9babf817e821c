"""What do prediction sets mean for a yes/no problem?

There are four sets: {benign}, {malignant}, both (the model abstains) and, if allowed, none. With
marginal coverage the rarer class may be missed more often than alpha. With `by="class"`, each class
is missed with probability alpha at most: sensitivity and specificity of the sets are guaranteed.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from trustsets import ModelOutputs, MondrianConformal, Softmax, StandardConformal, evaluate, plots

X, y = load_breast_cancer(return_X_y=True)
names = ["malignant", "benign"]
X, X_rest, y, y_rest = train_test_split(X[:, 5:10], y, train_size=100, random_state=0)
model = LogisticRegression(max_iter=5000).fit(X, y)
outputs = ModelOutputs(
    probabilities=model.predict_proba(X_rest), labels=[names[i] for i in y_rest], classes=names
)
calibration, test = outputs.split(0.5, seed=0, stratify=True)

evaluations = {}
print(f"{'':22}{'malignant':>12}{'benign':>10}{'decided':>10}{'right if decided':>18}")
for name, predictor in {
    "marginal": StandardConformal(score=Softmax()),
    "class-conditional": MondrianConformal(by="class", score=Softmax()),
}.items():
    sets = predictor.calibrate(calibration).predict_set(test, alpha=0.1)
    covered, decided = sets.covers(test.labels), sets.sizes == 1
    evaluations[name] = evaluate(sets, test, metrics=["class"])
    by_class = [covered[test.labels == label].mean() for label in names]
    print(
        f"{name:22}{by_class[0]:12.1%}{by_class[1]:10.1%}{decided.mean():10.1%}"
        f"{covered[decided].mean():18.1%}"
    )

with plots.style(medium="page"):
    axes = plots.coverage_by_group(evaluations, "class")
    axes.figure.savefig("coverage.png", bbox_inches="tight")
