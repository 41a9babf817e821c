"""Stand-ins for statistics and trust scores, whose values a test plants in the features."""

import numpy as np

from trustsets.statistics import Statistic


class FirstFeature:
    """A trust score that is the first feature."""

    def score(self, features, predicted):
        return np.asarray(features[:, 0], dtype=float)


class Column(Statistic):
    """A statistic that is one column of the features."""

    def __init__(self, index: int) -> None:
        object.__setattr__(self, "index", index)

    def measure(self, observed):
        return np.asarray(observed.features[:, self.index], dtype=float)

    @property
    def name(self):
        return f"x{self.index}"
