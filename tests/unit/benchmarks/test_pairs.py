"""Two processes, one of which is killed and comes back."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from typing_extensions import override

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")

from benchmarks.pairs import Pair, free_ports


class _Chance(random.Random):
    """Says what it is told to say."""

    def __init__(self, *ports: int) -> None:
        super().__init__(0)
        self._ports = iter(ports)

    @override
    def choice(self, _: object) -> int:  # type: ignore[override]  # gives ports and nothing else
        return next(self._ports)


def test_a_port_in_use_or_named_twice_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = taken.getsockname()[1]
        one, two = free_ports(2, random.Random(5))
        assert free_ports(2, _Chance(used, one, one, two)) == [one, two]


def far_ends(ports: list[int], log: Path) -> Pair:
    return Pair(lambda index: ["benchmarks.far_end", str(ports[index])], ports, log=log)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(10)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_killed_one_is_gone_and_comes_back_on_its_port(tmp_path: Path) -> None:
    with far_ends(free_ports(2), tmp_path / "log") as pair:
        assert pair.uris[0] == f"tcp://127.0.0.1:{pair.ports[0]}/amps/json"
        pair.kill(0)
        pair.wait_killed(0)
        assert [listens(port) for port in pair.ports] == [False, True]
        pair.start(0)
        assert listens(pair.ports[0])
    assert not any(map(listens, pair.ports))


def test_one_that_cannot_listen_fails_the_run_and_shows_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [*free_ports(1), taken.getsockname()[1]]
        with (
            pytest.raises(RuntimeError, match="server 1 ended with 1 and never listened"),
            far_ends(ports, tmp_path / "log"),
        ):
            pass
    assert not listens(ports[0])
    assert "Address already in use" in capsys.readouterr().err
