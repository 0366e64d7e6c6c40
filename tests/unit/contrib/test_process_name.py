from __future__ import annotations

import os

from haclient.contrib.process_name import process_name


def test_a_name_has_host_and_process() -> None:
    name = process_name("orders-web")
    assert name.startswith("orders-web-")
    assert name.endswith(f"-{os.getpid()}")
    assert os.uname().nodename in name
