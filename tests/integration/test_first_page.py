"""The blocks of README.md, pasted into one terminal in their order."""

from __future__ import annotations

import re
from pathlib import Path

from support.documents import Step, Terminal, blocks
from support.process import LIMIT_S, python_environment

README = Path(__file__).parents[2] / "README.md"
# They make an environment from the checkout, run the demo and all checks: other tests do.
ELSEWHERE = re.compile(r"python3 -m venv|pip install")
PRINTED = "{'id': %d}"


def for_asyncio(program: str) -> str:
    """The program with the lines that its comments name."""
    return re.sub(r"^( *).*  # asyncio: (.*)$", r"\1\2", program, flags=re.MULTILINE)


def test_the_blocks_of_the_readme_run_as_they_are_pasted(tmp_path: Path) -> None:
    found = [b for b in blocks(README.read_text("utf-8")) if not ELSEWHERE.match(b.text)]
    commands = [block.text for block in found if block.language == "sh"]
    blocking, trio = (block.text for block in found if block.language == "python")
    with Terminal(tmp_path, python_environment()) as terminal:
        for command in commands:
            terminal.type(Step(command, []), limit_s=LIMIT_S)
        for program, number in ((blocking, 1), (trio, 2), (for_asyncio(trio), 2)):
            terminal.save("hello.py", program)
            terminal.type(Step("python hello.py", [PRINTED % number]), limit_s=LIMIT_S)


def test_the_comments_of_the_program_make_one_for_asyncio() -> None:
    _, trio = (b.text for b in blocks(README.read_text("utf-8")) if b.language == "python")
    program = for_asyncio(trio)
    compile(program, "hello.py", "exec")
    assert program.startswith("import haclient.aio\nfrom haclient.aio import HAClient\n")
    assert program.endswith("\nhaclient.aio.run(main)\n")
