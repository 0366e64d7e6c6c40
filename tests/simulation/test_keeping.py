"""Plans that have exposed a bug: they pass now, and they fail where the bug is planted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.command import failures_of
from simulation.keeping import FOLDER, Kept, keep, kept_in
from simulation.mutations import MUTATIONS
from simulation.planning import plan_of

pytestmark = pytest.mark.simulation

FILES = sorted(FOLDER.glob("*.json"))
SEEDS = 20  # the order of what happens at one moment is another one with each seed


@pytest.mark.parametrize("seed", range(1, 31))
def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path, seed: int) -> None:
    kept = Kept(what="a bug", plan=plan_of(seed), mutation="trim_by_s")
    keep(kept, tmp_path / "kept.json")
    assert kept_in(tmp_path / "kept.json") == kept


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text('{"what": "nothing", "plan": {"seed": "one"}}')
    with pytest.raises(ValueError, match="seed"):
        kept_in(tmp_path / "kept.json")


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_kept_plan_passes(path: Path) -> None:
    kept = kept_in(path)
    assert kept.what
    assert failures_of(kept.plan) == ()


@pytest.mark.in_parts
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_kept_plan_finds_its_bug_again(path: Path) -> None:
    kept = kept_in(path)
    if kept.mutation:
        assert kept.mutation in MUTATIONS
        assert any(failures_of(plan, kept.mutation) for plan in kept.reseeded(SEEDS))


def test_there_are_kept_plans() -> None:
    assert len(FILES) >= 5
