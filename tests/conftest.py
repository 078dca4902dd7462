"""Fixtures that more than one test folder uses."""

import asyncio


pytest_plugins = ["testbed.pytest_plugin"]


def pytest_configure() -> None:
    """Let nobody make an event loop by asking for one: looptime asks before each sync test."""
    asyncio.set_event_loop(None)
