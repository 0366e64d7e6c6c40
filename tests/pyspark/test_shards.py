"""A change runs what needs no JVM, a path through each part, and a shard of the rest."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from haclient.pyspark.environment import java_problem
from support.spark_shards import COST_S, SHARDS, cost_of, files_below, shards_of

HERE = Path(__file__).parent
CLUSTER = "cluster/test_exactly_once.py"
FILES = files_below(HERE)


def test_each_file_is_in_one_shard_and_no_shard_takes_long() -> None:
    shards = shards_of(FILES)
    assert sorted(shards) == FILES
    loads = Counter[int]()
    for file, shard in shards.items():
        loads[shard] += cost_of(file)
    assert len(loads) == SHARDS
    assert max(loads.values()) <= max(cost_of(CLUSTER), sum(loads.values()) / SHARDS) * 1.1


def test_the_table_of_costs_names_files_that_exist() -> None:
    assert set(COST_S) <= set(FILES)


def test_a_file_does_not_change_its_shard_with_the_order_of_the_others() -> None:
    assert shards_of(reversed(FILES)) == shards_of(FILES)


@pytest.mark.parametrize("part", ["cli", "journal", "server", "sink"])
def test_each_part_has_a_test_that_every_change_runs(part: str) -> None:
    files = (HERE / part).glob("test_*.py")
    assert any("@pytest.mark.smoke\n" in file.read_text(encoding="utf-8") for file in files)


def test_a_test_that_does_not_ask_for_java_has_none() -> None:
    assert "this test has to use the fixture java" in java_problem(os.environ)
