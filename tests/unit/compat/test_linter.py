"""What `python -m haclient.compat` finds in programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from haclient import compat
from haclient.compat.__main__ import main
from haclient.compat.linter import findings

pytestmark = pytest.mark.row("B18")
OLD = """\
import AMPS as amps
from AMPS import Client, CMessageHandler, Nothing

client = amps.HAClient("desk-1")
client.set_default_max_depth(3)
client.publish("orders", "x")
amps.ssl_init()
"""


def test_imports_missing_names_and_differences_are_found() -> None:
    found = [(each.line, each.is_needed, each.text) for each in findings(OLD)]
    assert (1, True, "write `from haclient import compat as amps`") in found
    assert (2, True, "write `from haclient.compat import ...`") in found
    needed = [(line, text.partition(":")[0]) for line, is_needed, text in found if is_needed]
    assert {(2, "CMessageHandler"), (2, "Nothing"), (7, "ssl_init")} <= set(needed)
    assert (5, "Client.set_default_max_depth") in needed
    assert [line for line, is_needed, _ in found if not is_needed] == [4]


def test_a_program_of_another_client_has_no_findings() -> None:
    assert findings("import queue\nqueue.set_default_max_depth(3)\nfrom . import AMPS\n") == []
    assert findings(OLD.replace("AMPS", "haclient")) == []


@pytest.mark.parametrize(
    "line",
    [
        "from haclient import compat as amps",
        "import haclient.compat as amps",
        "from haclient import compat as amps; from haclient.compat import CMessageHandler, Nothing",
    ],
)
def test_a_program_whose_import_was_changed_is_still_searched(line: str) -> None:
    source = OLD.replace(
        "import AMPS as amps\nfrom AMPS import Client, CMessageHandler, Nothing", line
    )
    needed = [each.text.partition(":")[0] for each in findings(source) if each.is_needed]
    assert {"Client.set_default_max_depth", "ssl_init"} <= set(needed)
    assert ("Nothing" in needed) == ("Nothing" in line)
    assert not [text for text in needed if "write" in text]


def test_a_missing_member_of_a_class_is_found() -> None:
    uses = "AMPS.Message.Nothing.SOW\nM.Nothing\nM.Options\n"
    source = f"import AMPS\nfrom AMPS import Message as M\n{uses}"
    needed = [(each.line, each.text) for each in findings(source) if each.is_needed]
    assert needed[2:] == [
        (3, "Message.Nothing: haclient.compat has no such name"),
        (4, "Message.Nothing: haclient.compat has no such name"),
    ]


def test_the_findings_come_in_the_order_of_the_program() -> None:
    lines = [each.line for each in findings(OLD)]
    assert lines == sorted(lines)


def test_the_command_lists_them_and_its_exit_code_says_whether_work_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "new.py").write_text("from haclient import compat as AMPS\nAMPS.Client('x')\n")
    assert main([str(folder)]) == 0
    (folder / "old.py").write_text(OLD)
    assert main([str(folder)]) == 1
    out = capsys.readouterr().out
    assert f"{folder}/old.py:1:1: change: write `from haclient import compat as amps`\n" in out
    assert "4:10: note: HAClient" in out


@pytest.mark.parametrize("content", [b"def (:\n", b"\xff\xfe", b"a\0b"])
def test_what_is_no_program_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"haclient: error: {path}: cannot be read as Python: ")
    assert error.count("\n") == 1


def test_a_program_that_is_nested_too_deeply_does_not_end_the_check_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text(f"import AMPS\nx = {'-' * 43_000}1\n")
    (tmp_path / "b.py").write_text("import AMPS\n")
    (tmp_path / "folder.py").mkdir()
    assert main([str(tmp_path)]) == 2
    out, error = capsys.readouterr()
    assert error.count("\n") == 1
    assert "a.py: cannot be read as Python: an expression is nested too deeply" in error
    assert "b.py:1:1: change: write" in out


def test_after_an_import_of_all_names_missing_ones_are_found_where_they_are_used() -> None:
    program = "from AMPS import *\nclient = HAClient('x')\nprint(client)\nssl_init()\n"
    found = [(each.line, each.is_needed, each.text.partition(":")[0]) for each in findings(program)]
    assert found == [
        (1, True, "write `from haclient.compat import ...`"),
        (2, False, "HAClient"),
        (4, True, "ssl_init"),
    ]


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "haclient.compat", str(tmp_path)]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (1, b"")


def test_bad_arguments_and_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert main(["--unknown"]) == 2
    assert main([str(tmp_path / "missing.py")]) == 2
    assert capsys.readouterr().out.startswith("usage: python -m haclient.compat")


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_text("import AMPS\n")
    ran = subprocess.run(  # our own interpreter
        [sys.executable, "-m", "haclient.compat", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "change: write `from haclient import compat as AMPS`" in ran.stdout


def test_each_exported_name_is_known() -> None:
    program = "import AMPS\n" + "".join(f"AMPS.{name}\n" for name in compat.__all__)
    assert [each.text for each in findings(program) if each.is_needed] == [
        "write `from haclient import compat as AMPS`"
    ]


LEAKS = """\
from haclient import compat as AMPS
client = AMPS.Client("c")
for message in client.subscribe("orders"):
    if message:
        break
for message in client.sow("orders"):
    for each in ():
        break
client.disconnect()
"""


def test_streams_that_are_left_and_clients_that_are_not_closed_are_found() -> None:
    found = {each.line: each.text for each in findings(LEAKS)}
    assert set(found) == {3, 9}
    assert "with client.subscribe(...) as messages:" in found[3]
    assert "client.close()" in found[9]
    assert not any(each.is_needed for each in findings(LEAKS))
    assert [each.line for each in findings(f"{LEAKS}client.close()\n")] == [3]
