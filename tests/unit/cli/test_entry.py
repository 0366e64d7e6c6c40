"""What is in order before the command line is loaded."""

from __future__ import annotations

import sys

import pytest

from haclient.cli import main


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
