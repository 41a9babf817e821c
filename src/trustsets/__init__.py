"""Prediction sets with more even coverage across confidence, trust, groups and classes.

The public names are listed in ``__init__.pyi`` and imported when first used, so that
``import trustsets`` itself stays light.
"""

import logging

import lazy_loader

from trustsets._version import __version__ as __version__

# Silent unless a program asks for it, as in logging.basicConfig(level="INFO").
logging.getLogger(__name__).addHandler(logging.NullHandler())

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
