"""``trustsets warmup``: compile the numerical kernels before they are needed."""

import time

from trustsets.cli import console

__all__ = ["warmup"]


def warmup() -> None:
    """Compile the numerical kernels now instead of at the first calibration.

    This is useful when an image is built. Compiled code is kept beside the
    installed package, or in the folder that NUMBA_CACHE_DIR names.

    Example:

      trustsets warmup --quiet
    """
    import numpy as np

    from trustsets.engine import warm_up
    from trustsets.engine.compiled import stop_announcing
    from trustsets.trust import TrustScore

    stop_announcing()
    start, rng = time.perf_counter(), np.random.default_rng(0)
    with console.progress("compiling", total=3) as advance:
        warm_up()
        advance(1)
        for kind in (np.float32, np.float64):
            features, labels = rng.random((60, 3)).astype(kind), np.arange(60) % 3
            TrustScore().fit(features, labels).score(features, labels)
            advance(1)
    seconds = round(time.perf_counter() - start, 1)
    text = f"The numerical kernels are ready (after {seconds} s)."
    console.conclude({"seconds": seconds}, text)
