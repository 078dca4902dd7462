"""The agent of one GPU node."""

from typing import Final


__version__: Final = "0.1.0"
"""As in pyproject.toml (a test compares); reading it from metadata at start costs megabytes."""
