"""`python tools/make_blocking.py`: write `haclient.blocking` from `haclient.aio`, and its tests.

`haclient/aio.py` is the source of both: without `async` and `await`, and with the bridge to threads
instead of the one to event loops, it is `haclient/blocking.py`. Tests likewise. Names are replaced
in the code, words in strings and comments. What asyncio alone needs stands between two comments::

    # asyncio: why
    ...
    # both
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

NAMES: Final = {
    "AsyncGenerator": "Generator",
    "LoopThread": "BlockingThread",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aio": "blocking",
    "anext": "next",
    "in_loop": "in_thread",
    "asynccontextmanager": "contextmanager",
    "loop_bridge": "thread_bridge",
    "loops": "threads",
}
WORDS: Final = [
    (re.compile(rf"\b{theirs}\b"), ours)
    for theirs, ours in {
        **NAMES,
        "async with": "with",
        "async for": "for",
        "An async iterator": "An iterator",
        "asyncio": "programs without trio",
        "await ": "",
        "cancelled": "interrupted",
        "task": "thread",
        "tasks": "threads",
    }.items()
]

CLIENT_DOCSTRING: Final = """\
The client for programs without an event loop: scripts, notebooks, Flask, Django.

`HAClient` and `Client` have the methods of `haclient.HAClient` and `haclient.Client`, under the
same names and with the same arguments, as ordinary calls that block the calling thread only::

    with HAClient("orders-7", servers=[uri]) as client:
        client.publish("orders", b"{}")
        with client.stream("orders") as messages:
            for message in messages:
                ...

The client itself lives in a thread of its own, which runs trio. Any number of threads may call it
at the same time; what one thread publishes keeps its order. A call that waits is ended by a
`KeyboardInterrupt`, and by `close` in another thread.

Handlers and listeners are plain functions. Each runs in a worker thread, one message at a time, in
the order of its subscription, and may call the client. What a handler raises ends the client, as in
trio: calls that wait and all later ones raise it, and so does leaving the block.

In a thread that runs trio or asyncio the calls are refused, since they would stop the event loop:
use `haclient.HAClient` or `haclient.aio.HAClient` there. Notebooks are the exception: a cell may
block.
"""

TESTS_DOCSTRING: Final = "The blocking client: what it has in common with the one for asyncio."


@dataclass(frozen=True)
class Pair:
    """A module for asyncio, and the one for threads that is made of it.

    Attributes:
        source: The path of the first, from the root.
        target: The path of the second.
        docstring: Of the second.
    """

    source: str
    target: str
    docstring: str

    def made(self) -> str:
        """The text of the target, before it is formatted."""
        head = f"# Made of {self.source} by tools/make_blocking.py: change that, and run this.\n"
        text = (ROOT / self.source).read_text(encoding="utf-8")
        text = re.sub(r"\n *# asyncio: .*?\n *# both(?=\n)", "", text, flags=re.DOTALL)
        text = _edited(text, sorted(_edits(text)))
        return f'{head}"""{self.docstring}"""' + text[text.index('"""', 3) + 3 :]

    def committed(self) -> str:
        """The text of the target as it is."""
        return (ROOT / self.target).read_text(encoding="utf-8")


PAIRS: Final = (
    Pair("haclient/aio.py", "haclient/blocking.py", CLIENT_DOCSTRING),
    Pair("tests/unit/test_aio.py", "tests/unit/test_blocking.py", TESTS_DOCSTRING),
)


def _edits(text: str) -> Iterator[tuple[int, int, str]]:
    """What to replace: the begin and the end of each place, and what comes there instead."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    tokens = [
        (each, lines[each.start[0] - 1] + each.start[1], lines[each.end[0] - 1] + each.end[1])
        for each in tokenize.generate_tokens(io.StringIO(text).readline)
    ]
    brackets: list[bool] = []  # of each that is open, whether it is one of Coroutine
    for i, (token, begin, end) in enumerate(tokens):
        match token:
            case tokenize.TokenInfo(type=tokenize.NAME, string="async" | "await"):
                yield begin, tokens[i + 1][1], ""
            case tokenize.TokenInfo(type=tokenize.NAME, string="Coroutine"):
                # Coroutine[object, object, T] is T, and an import of it is needed no more.
                yield begin, tokens[i + (6 if tokens[i + 1][0].string == "[" else 2)][1], ""
            case tokenize.TokenInfo(type=tokenize.NAME, string=name) if name in NAMES:
                yield begin, end, NAMES[name]
            case tokenize.TokenInfo(type=tokenize.STRING | tokenize.COMMENT, string=words):
                yield begin, end, _in_other_words(words)
            case tokenize.TokenInfo(type=tokenize.OP, string="["):
                brackets.append(tokens[i - 1][0].string == "Coroutine")
            case tokenize.TokenInfo(type=tokenize.OP, string="]"):
                if brackets.pop():
                    yield begin, end, ""
            case _:
                pass


def _in_other_words(text: str) -> str:
    for theirs, ours in WORDS:
        text = theirs.sub(ours, text)
    return text


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    done = 0
    for begin, end, replacement in edits:
        parts += text[done:begin], replacement
        done = end
    return "".join(parts) + text[done:]


def meaning(text: str) -> list[str]:
    """What a formatter does not change: imports in any order, statements, and comments."""
    tree = ast.parse(text)
    imports: set[str] = set()
    others: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            imports.update(f"{module} {ast.dump(name)}" for name in node.names)
        else:
            others.append(ast.dump(node))
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return [*sorted(imports), *others, *comments]


def main() -> None:
    """Write all targets."""
    for pair in PAIRS:
        path = ROOT / pair.target
        path.write_text(pair.made(), encoding="utf-8")
        ruff(path, "check", "--fix", "--select", "I")
        ruff(path, "format")


def ruff(path: Path, *command: str) -> None:
    """Run ruff over a file."""
    subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", path], check=True)


if __name__ == "__main__":
    main()
