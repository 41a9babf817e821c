"""`explore`: the live page of `trustsets_explorer`, which is imported when it is called."""

from typing import TYPE_CHECKING, Any

from trustsets.outputs import ModelOutputs

if TYPE_CHECKING:
    from trustsets_explorer import Explorer

__all__ = ["explore"]


def explore(outputs: ModelOutputs, **options: Any) -> "Explorer":
    """Serve a local page that shows coverage and sizes live while parameters move.

    Parameters
    ----------
    outputs : ModelOutputs
        Held-out samples with labels. The page splits them into calibration and test samples.
    **options
        Those of `trustsets_explorer.explore`, such as ``train=(features, labels)`` for the trust
        score, ``images=`` and ``browser=True``.

    Returns
    -------
    trustsets_explorer.Explorer
        Its `url` is the address, and `stop` ends it.
    """
    from trustsets_explorer import explore as serve

    return serve(outputs, **options)
