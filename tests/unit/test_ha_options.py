from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from haclient.ha import HAClient
from haclient.ha_options import HAOptions


@pytest.mark.row("HA11")
def test_the_options_are_the_parameters_of_the_client_but_for_name_and_stores() -> None:
    parameters = inspect.signature(HAClient).parameters
    own = {"name", "publish_store", "bookmark_store"}
    hints = get_type_hints(HAClient.__init__)
    assert list(HAOptions.__annotations__) == [name for name in parameters if name not in own]
    assert get_type_hints(HAOptions) == {name: hints[name] for name in HAOptions.__annotations__}
    assert not HAOptions.__required_keys__
