"""What the stress tests share: a server that they may stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.ownserver import OwnServer
from ..support.ownserver import own_server as own


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    """A server of this test's own, with the schema in it."""
    with own() as server:
        yield server
