"""The version, read by the build and by `trustsets.__version__`."""

__version__ = "0.1.0"
