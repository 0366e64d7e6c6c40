"""The files of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.cli.demo.trace_file import WORD_BYTES, WordFormat, mapped_words, read_words


@pytest.mark.parametrize("form", ["I", "Q"])
def test_words_can_be_read_while_they_are_written(tmp_path: Path, form: WordFormat) -> None:
    path = tmp_path / "words"
    with mapped_words(path, 40_000, form) as words:
        words[0], words[39_999] = 7, 2**32 - 1
        found = [word for chunk in read_words(path, 0, form) for word in chunk]
        assert found == [7, *[0] * 39_998, 2**32 - 1]
        [rest] = read_words(path, 39_999 * WORD_BYTES[form], form)
        assert rest.tolist() == [2**32 - 1]


def test_a_missing_file_has_no_words(tmp_path: Path) -> None:
    assert list(read_words(tmp_path / "words", 0, "I")) == []


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"kept")
    with pytest.raises(FileExistsError), mapped_words(tmp_path / "words", 1, "I"):
        pass
    assert (tmp_path / "words").read_bytes() == b"kept"
