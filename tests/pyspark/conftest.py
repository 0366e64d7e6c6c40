"""One session of PySpark for all tests of this folder; they are run by `nox -s pyspark`.

A test that needs a JVM uses the fixture `java`, directly or through `spark`, and has the mark `jvm`
for it; no other test can start one. With `--part N` the tests that need no JVM run, those that are
marked `smoke`, and a shard of the rest (support.spark_shards).

    pytest -m pyspark tests/pyspark -n 2 --dist loadfile --no-loadscope-reorder --part N

Two processes, each with a session of its own: a session alone leaves a processor idle much of the
time, as JVM and Python take turns. Files stay whole, since their tests share what is built once,
and keep their order: the longest ones begin first, so that both processes end at about the same
time.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.process import QUICK_JAVA, QUICK_JVM
from support.spark_shards import SHARDS, cost_of, files_below, shards_of
from support.warm_python import warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without the extra there is nothing to import. (This folder has the name of a package that may be
# missing; so a module of it is looked for.)
HAS_EXTRA = find_spec("pyarrow") is not None and (
    find_spec("pyspark") is not None and find_spec("pyspark.sql") is not None
)
collect_ignore_glob = [] if HAS_EXTRA else ["test_*.py", "*/test_*.py"]

HERE = Path(__file__).parent
TIMEOUT_S = 600

JAVA = "java"  # the fixture


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, choose those of a shard, and put the longest files first."""
    files = files_below(HERE)
    shards, place = (
        shards_of(files),
        {file: n for n, file in enumerate(sorted(files, key=shortest))},
    )
    part = config.getoption("--part")
    kept: list[tuple[int, pytest.Item]] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if not item.path.is_relative_to(HERE):
            kept.append((-1, item))
            continue
        file = item.path.relative_to(HERE).as_posix()
        mark(item)
        needs_jvm = item.get_closest_marker("jvm") and not item.get_closest_marker("smoke")
        if part is not None and needs_jvm and shards[file] != part % SHARDS:
            left_out.append(item)
        else:
            kept.append((place[file], item))
    items[:] = [item for _, item in sorted(kept, key=itemgetter(0))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def shortest(file: str) -> tuple[int, str]:
    """Sorts the longest files to the front."""
    return -cost_of(file), file


def mark(item: pytest.Item) -> None:
    """Add the marks of a test of this folder."""
    # `-m "not pyspark"` leaves out all that needs the extra.
    item.add_marker(pytest.mark.pyspark)
    if JAVA in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.jvm)
    # The first test starts the JVM; on a busy machine that takes longer than the limit.
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def java() -> Mapping[str, str]:
    """The environment of a process that starts a JVM for a few rows."""
    from haclient.pyspark.environment import java_problem  # noqa: PLC0415 - an extra

    if problem := java_problem(os.environ):
        pytest.skip(problem)
    return QUICK_JAVA


@pytest.fixture(autouse=True)
def java_is_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts a JVM without the fixture fails: it would do so in every shard."""
    if JAVA not in request.fixturenames:
        monkeypatch.setenv("JAVA_HOME", "/this test has to use the fixture java")


@pytest.fixture(scope="session")
def spark(
    java: Mapping[str, str],  # noqa: ARG001 - it starts a JVM
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[SparkSession]:
    """A session with two threads, which tries each task up to four times; our sources are known."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from haclient.pyspark import register  # noqa: PLC0415 - the same

    folder = tmp_path_factory.mktemp("pyspark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"{QUICK_JVM} -Dderby.system.home={folder}",
        # A query of a few rows is planned and compiled longer than it runs: its expressions are
        # interpreted here, and its stages planned once. A query in a process of its own, such as
        # those of the commands and of the example, has the settings of every user.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("haclient tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Workers import the sources of this checkout, installed or not, and the modules of the tests.
    with warm_python() as variables:
        os.environ.update(variables)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")  # errors arrive as exceptions
        register(session)
        yield session
        session.stop()


@pytest.fixture
def pushing(spark: SparkSession) -> Generator[None]:
    """PySpark pushes the conditions of queries down to sources that take them."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)
