"""The paper itself: its datasets, networks, protocol, tables and baselines.

Needs ``pip install 'trustsets[paper]'``; `trustsets paper --help` lists the commands. This package
uses `trustsets` through its public names only.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Bools", "Floats", "Ints"]

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
