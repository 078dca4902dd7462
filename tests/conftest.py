"""Fixtures that more than one test folder uses, and how hypothesis searches."""

import asyncio

from hypothesis import HealthCheck, settings

from tests.property.cases import cases


pytest_plugins = ["testbed.pytest_plugin"]

# The same examples in every run, so that a red run is always about the change at hand; and nothing
# depends on how quick the machine is. `search` looks at new examples each time.
_UNTIMED = settings(
    max_examples=cases(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("fixed", _UNTIMED, derandomize=True)
settings.register_profile("search", _UNTIMED)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """Let nobody make an event loop by asking for one: looptime asks before each sync test."""
    asyncio.set_event_loop(None)
