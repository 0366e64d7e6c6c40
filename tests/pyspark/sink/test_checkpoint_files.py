"""The files beside a checkpoint, without a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from haclient.errors import UsageError
from haclient.pyspark.sink.checkpoint_files import (
    RESOLVED_DIRECTORY,
    UNLOGGED_DIRECTORY,
    arrow_uri,
    check_guard,
    check_unlogged,
    keep_unlogged,
    query_id,
    resolved_rows,
)
from haclient.pyspark.sink.lanes import LaneGuard

GUARD = LaneGuard(2, "key", ("at",), "spark")


@pytest.mark.row("SK6")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_a_location_is_a_path_or_a_uri(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(tmp_path / "c")
    check_guard(checkpoint, GUARD)
    check_guard(checkpoint, GUARD)
    assert [each.name for each in (tmp_path / "c").iterdir()] == ["haclient-sink.json"]
    with pytest.raises(UsageError, match="key is id and was key when this checkpoint began"):
        check_guard(checkpoint, LaneGuard(2, "id", ("at",), "spark"))


@pytest.mark.row("SK6")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_location_is_taken_as_it_is_written_as_pyspark_does(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "a%20b c"
    check_guard(form.format(folder), GUARD)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


def test_the_names_of_hadoop_for_s3_are_known() -> None:
    for scheme in ("s3", "s3a", "s3n"):
        assert arrow_uri(f"{scheme}://bucket/a%20b c") == "s3://bucket/a%2520b%20c"
    assert arrow_uri("abfss://c@a/s3a://") == "abfss://c@a/s3a://"


@pytest.mark.parametrize(
    "location", ["dbfs://x/y", "dbfs:/x/y", "hdfs:/user/q", "wasbs://c@a.blob.core.windows.net/q"]
)
def test_a_file_system_that_pyarrow_does_not_know_is_named(location: str) -> None:
    wanted = r"pyarrow cannot open .* use a path, or a URI of a file"
    with pytest.raises(UsageError, match=wanted) as caught:
        check_unlogged(location)
    assert "\n" not in str(caught.value)


@pytest.mark.row("SK8")
def test_rows_that_are_not_logged_are_kept_until_their_file_is_moved(tmp_path: Path) -> None:
    check_unlogged("")  # a batch job has no checkpoint
    assert not resolved_rows("", 7, 0)
    root = str(tmp_path)
    check_unlogged(root)
    keep_unlogged(root, 7, 0, [(5, 5), (8, 9)], "row 5: not entitled")
    keep_unlogged(root, 7, 0, [(2, 2)], "row 2: not entitled")
    keep_unlogged(root, 7, 1, [(1, 1)], "row 1: not entitled")
    wanted = (
        r'"batch": 7.*row 2: not entitled.* and 2 more files.* then move every file of '
        rf".*{UNLOGGED_DIRECTORY} to {tmp_path}/{RESOLVED_DIRECTORY}$"
    )
    with pytest.raises(UsageError, match=wanted):
        check_unlogged(root)
    assert not resolved_rows(root, 7, 0)
    move_to_resolved(tmp_path)
    check_unlogged(root)
    assert resolved_rows(root, 7, 0) == [(2, 2), (5, 5), (8, 9)]
    assert resolved_rows(root, 7, 1) == [(1, 1)]
    assert not resolved_rows(root, 8, 0)
    keep_unlogged(root, 7, 0, [(11, 11)], "row 11: not entitled")  # the batch went on
    move_to_resolved(tmp_path)
    assert resolved_rows(root, 7, 0) == [(2, 2), (5, 5), (8, 9), (11, 11)]


def test_a_damaged_file_of_resolved_rows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / RESOLVED_DIRECTORY).mkdir()
    for content in ("", "[]", "{}", '{"rows":[1]}', '{"rows":[[1]]}'):
        (tmp_path / RESOLVED_DIRECTORY / "7-0-1.json").write_text(content)
        with pytest.raises(UsageError, match=r"7-0-1\.json is damaged"):
            resolved_rows(str(tmp_path), 7, 0)


def move_to_resolved(checkpoint: Path) -> None:
    """Do what the error says."""
    for file in (checkpoint / UNLOGGED_DIRECTORY).iterdir():
        file.rename(checkpoint / RESOLVED_DIRECTORY / file.name)


def test_the_id_of_a_query_is_that_of_its_checkpoint(tmp_path: Path) -> None:
    for content in (None, "", "{}", "[]", '"id"'):
        if content is not None:
            (tmp_path / "metadata").write_text(content)
        with pytest.raises(UsageError, match="metadata does not tell the id of the query"):
            query_id(str(tmp_path))
    (tmp_path / "metadata").write_text('{"id":"a-b"}')
    assert query_id(f"file:{tmp_path}") == "a-b"
