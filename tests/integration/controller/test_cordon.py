"""The main job on a real API server: a fault takes its node out, its end brings it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def test_a_fault_cordons_and_its_end_uncordons(site: Site, run: Callable[..., Replica]) -> None:
    faulty, well = site.node(), site.node()
    site.says(well)
    run()
    site.says(faulty, 79)
    site.wait(lambda: site.cordoned(faulty), "cordon")
    session = site.session(faulty)
    assert session is not None
    assert session["added"] == {"cordoned": True}
    assert [hold["policy"] for hold in session["holds"]] == ["xid-79"]

    site.says(faulty)
    site.wait(lambda: not site.cordoned(faulty), "uncordon")

    assert site.session(faulty) is None
    assert len(site.history(faulty)["attempts"]) == 1
    assert not site.writes_to(well)
