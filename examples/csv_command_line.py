"""My model's outputs are in a spreadsheet: how do I get sets without writing Python?

The script writes tables as any tool would, then runs the commands that you would type.
"""

import csv
import shlex
import subprocess
import sys
from pathlib import Path

from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X, y = load_wine(return_X_y=True)
names = ["barolo", "grignolino", "barbera"]
X_train, X_rest, y_train, y_rest = train_test_split(X, y, test_size=0.7, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X_train[:, :4], y_train)


def write(path, X, y):
    """One row per wine: a probability for each class, the true class, and the vineyard's region."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*(f"prob_{name}" for name in names), "truth", "region"])
        for row, (p, label) in enumerate(zip(model.predict_proba(X[:, :4]), y, strict=True)):
            region = ["north", "south", ""][row % 3]  # an empty cell is a group of its own
            table.writerow([*p, names[label], region])


write("held_out.csv", X_rest[::2], y_rest[::2])
write("new.csv", X_rest[1::2], y_rest[1::2])

for command in (
    "calibrate held_out.csv --label-column truth --method standard -o wine.trustsets",
    "predict wine.trustsets new.csv --alpha 0.1 -o sets.csv",
    "evaluate new.csv wine.trustsets --group region --metric groups",
):
    print(f"$ trustsets {command}", flush=True)
    subprocess.run([sys.executable, "-m", "trustsets.cli", *shlex.split(command)], check=True)

print("\nThe first sets:")
print("\n".join(Path("sets.csv").read_text(encoding="utf-8").splitlines()[:4]))
