"""What is generated is what is committed."""

from __future__ import annotations

import pytest

from tools.make_blocking import PAIRS, Pair, meaning


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.target)
def test_the_committed_module_is_the_one_that_the_script_writes(pair: Pair) -> None:
    assert meaning(pair.committed()) == meaning(pair.made()), (
        f"{pair.target} is made of {pair.source}: change that one, and run "
        "`python tools/make_blocking.py`"
    )
