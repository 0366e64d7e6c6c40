"""What is in order before the command line is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from haclient.cli import main
from haclient.stores import LoggedBookmarkStore
from support.process import haclient


def test_the_entry_point_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["haclient", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


@pytest.mark.row("CLI9")
def test_an_interrupt_while_modules_are_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Impatient:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "haclient.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "haclient.cli.app", raising=False)
    monkeypatch.setattr("sys.meta_path", [Impatient(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "haclient: error: interrupted\n"


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("command", [("store", "show"), ("store", "export")])
def test_results_without_a_standard_output_are_a_failure(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "orders.bm"
    store = LoggedBookmarkStore(path)
    store.log("s", "1|1|")
    store.close()
    done = haclient(*command, path, before_exec=lambda: os.close(1))
    assert done.code == 1
    assert done.err == "haclient: error: standard output: it is closed\n"
