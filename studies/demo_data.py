"""Make the outputs of a deep network that ship with the package, for `trustsets demo`.

Reads `cifar100_train.npz`, `cifar100_pool.npz` and `cifar100_names.npz` from the benchmark folder
and writes `src/trustsets/demo/data/cifar100.npz`. The README beside it says what is in the file.

    python studies/demo_data.py --bench DIR
"""

import argparse
from pathlib import Path

import numpy as np

from trustsets import TrustScore

TARGET = Path(__file__).parents[1] / "src" / "trustsets" / "demo" / "data" / "cifar100.npz"
HALF = 1
"""Value of `source` of the images that are kept: one of the two held-out parts, 100 per class."""
COMPONENTS = 32


def main() -> None:
    """Write the file, and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, required=True)
    folder = parser.parse_args().bench
    train = np.load(folder / "cifar100_train.npz")
    pool = np.load(folder / "cifar100_pool.npz")
    names = np.load(folder / "cifar100_names.npz")["classes"]

    kept = pool["source"] == HALF
    logits = pool["logits"][kept]
    features = pool["features"][kept].astype(np.float32)
    reference = train["features"].astype(np.float32)
    trust = TrustScore().fit(reference, train["labels"]).score(features, logits.argmax(axis=1))

    # Directions of largest variance of the training features, normalised as the trust score
    # normalises them: rows of the result have distances close to those that trust is made of.
    reference, features = _normalised(reference), _normalised(features)
    centre = reference.mean(axis=0)
    _, directions = np.linalg.eigh(np.cov(reference, rowvar=False))
    components = (features - centre) @ directions[:, ::-1][:, :COMPONENTS]

    np.savez_compressed(
        TARGET,
        logits=logits,
        features=components.astype(np.float16),
        trust=trust.astype(np.float32),
        labels=pool["labels"][kept].astype(np.uint8),
        classes=np.array([name.replace("_", " ") for name in names]),
    )
    print(f"{TARGET.name}: {kept.sum():,} samples, {TARGET.stat().st_size / 1e6:.2f} MB")


def _normalised(features: np.ndarray) -> np.ndarray:
    rows: np.ndarray = features.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


if __name__ == "__main__":
    main()
