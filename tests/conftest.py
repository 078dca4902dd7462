"""Fixtures that more than one test folder uses."""

pytest_plugins = ["testbed.pytest_plugin"]
