"""What is wrong with an environment is said in one line, before the first query."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import haclient.pyspark
from haclient.errors import UsageError
from haclient.pyspark.environment import (
    MINIMUM,
    check_imported,
    check_installation,
    check_worker,
    java_problem,
    probe,
    register,
)
from support.warm_python import WARM_PYTHON

THIS_PYTHON = ".".join(map(str, sys.version_info[:2]))
EXAMPLES = Path(__file__).parents[2] / "examples"
WORKER = {
    "python": THIS_PYTHON,
    "executable": "/opt/python3",
    "pyarrow": "20.0.0",
    "numpy": "2.0.0",
    "haclient": "1",
}


def fake_java(folder: Path, script: str) -> dict[str, str]:
    """An environment whose Java is a script."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


def test_a_program_that_pyspark_would_import_is_refused_by_its_name(tmp_path: Path) -> None:
    for name in ("pyspark.py", "my_pyspark_job.py", "pyspark_notes.txt"):
        (tmp_path / name).touch()
    check_imported(tmp_path)
    (tmp_path / "pyspark_job.py").touch()
    with pytest.raises(UsageError, match=r"pyspark_job.py is imported by PySpark .*: rename it"):
        check_imported(tmp_path)


def test_no_program_of_ours_has_a_name_that_pyspark_imports() -> None:
    check_imported(EXAMPLES)


@pytest.mark.usefixtures("java")
def test_the_installation_that_runs_the_tests_is_fine() -> None:
    check_installation()


def test_a_java_that_is_new_enough_is_taken_from_java_home_or_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path, """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
    assert java_problem(home) == ""
    assert java_problem({"PATH": str(tmp_path / "bin")}) == ""


def test_a_missing_java_is_named(tmp_path: Path) -> None:
    assert java_problem({"PATH": str(tmp_path)}).startswith("Java is missing: install Java 17")
    with pytest.raises(UsageError, match="Java is missing: install Java 17 or later"):
        check_installation({"PATH": str(tmp_path)})


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392"])
def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path, version: str) -> None:
    problem = java_problem(fake_java(tmp_path, f"""echo 'openjdk version "{version}"' >&2"""))
    assert f'bin/java is openjdk version "{version}": install Java 17' in problem


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    problem = java_problem(fake_java(tmp_path, "exit 3"))
    assert "bin/java -version has failed" in problem
    assert "exit status 3" in problem
    silent = java_problem(fake_java(tmp_path / "silent", "exit 0"))
    assert "of an unknown version" in silent


def test_a_worker_that_has_all_is_fine() -> None:
    check_worker(WORKER, is_shipped=False)
    check_worker({**WORKER, "haclient": ""}, is_shipped=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "3.8"}, f"runs Python {THIS_PYTHON}, Python 3.8 was found on a worker"),
        ({"pyarrow": ""}, r"pyarrow is missing on a worker \(/opt/python3\): install it there"),
        ({"numpy": ""}, r"numpy is missing on a worker \(/opt/python3\): install it there"),
        (
            {"pyarrow": "11.0"},
            r"pyarrow on a worker \(/opt/python3\) 18.0 or later is needed, 11.0",
        ),
        ({"haclient": ""}, r"haclient is missing on a worker \(/opt/python3\): install it there"),
    ],
)
def test_what_a_worker_lacks_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_worker({**WORKER, **change}, is_shipped=False)


def test_workers_on_this_machine_get_the_interpreter_of_the_program(spark: SparkSession) -> None:
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert spark.sparkContext.pythonExec == sys.executable


def test_workers_are_forks_of_a_process_that_has_imported_everything(spark: SparkSession) -> None:
    (argv,) = spark.sparkContext.range(1).map(lambda _: sys.orig_argv).collect()
    assert "support.warm_python" in argv


def test_a_session_is_not_registered_where_pyspark_would_import_a_program(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_job.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"pyspark_job.py is imported by PySpark"):
        register(spark)


def test_a_worker_is_asked_for_what_it_has(spark: SparkSession) -> None:
    register(spark, probe_workers=True)


def test_workers_without_what_is_needed_are_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = tmp_path / "python3"  # the same Python, in which pyarrow cannot be imported
    lacking.write_text(
        f"#!/bin/sh\nunset {WARM_PYTHON}\n"
        f'PYTHONPATH={tmp_path}:$PYTHONPATH exec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    lacking.chmod(0o755)
    (tmp_path / "pyarrow.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(lacking))
    monkeypatch.setenv("PYSPARK_PYTHON", str(lacking))
    with pytest.raises(UsageError, match="pyarrow is missing on a worker") as caught:
        register(spark)
    assert "\n" not in str(caught.value)


def test_an_interpreter_that_does_not_exist_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "no-such-python")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", missing)
    monkeypatch.setenv("PYSPARK_PYTHON", missing)
    with pytest.raises(UsageError, match=f"the workers' Python .{missing}. does not run") as caught:
        probe(spark)
    assert "\n" not in str(caught.value)


def test_an_old_package_is_named_by_the_first_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(haclient.pyspark), "read_journal", raising=False)
    monkeypatch.setitem(sys.modules, "haclient.pyspark.journal.frames", None)
    with pytest.raises(ImportError, match=r"pyspark\.journal\.frames"):
        _ = haclient.pyspark.read_journal
    monkeypatch.setitem(MINIMUM, "pyspark", (99, 0))
    with pytest.raises(UsageError, match=r"pyspark 99\.0 or later is needed, \S+ was found: pip"):
        _ = haclient.pyspark.read_journal


def test_names_of_the_package_are_loaded_when_they_are_used() -> None:
    for name in dir(haclient.pyspark):
        assert getattr(haclient.pyspark, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(haclient.pyspark, "no_such_name")  # noqa: B009 - a type checker would refuse it
