"""The examples of docs/testing.md, run as a user's tests would be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import blocks

PAGE = Path(__file__).parents[2] / "docs/testing.md"


@pytest.mark.row("FI1", "FI4", "FI7")
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    examples = [b.text for b in blocks(PAGE.read_text(encoding="utf-8")) if b.language == "python"]
    for number, example in enumerate(examples):
        (tmp_path / f"test_{number}.py").write_text(example, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    plugins = ("-p", "pytest_trio.plugin", "-p", "haclient_fake_server.pytest_plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        env={
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{len(examples)} passed" in done.stdout, done.stdout
