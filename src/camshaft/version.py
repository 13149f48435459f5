"""The version, which the package's metadata is read from."""

__version__ = "0.1.0"
