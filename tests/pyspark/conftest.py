"""One session of PySpark for all tests of this folder; they are run by `nox -s pyspark`."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.process import QUICK_JVM

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

# The longest tests begin first, so that two processes end at about the same time.
LONGEST = ("cluster/", "test_examples.py")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs the extra: `-m "not pyspark"` leaves them out."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.pyspark)
            # The first test starts the JVM; on a busy machine that takes longer than the limit.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))
    items.sort(key=is_short)


def is_short(item: pytest.Item) -> bool:
    """Whether it does not matter when a test begins."""
    return not any(item.path.is_relative_to(HERE / name) for name in LONGEST)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession]:
    """A session with two threads, which tries each task up to four times; our sources are known."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from haclient.pyspark import register  # noqa: PLC0415 - the same

    folder = tmp_path_factory.mktemp("pyspark")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Workers import the sources of this checkout, installed or not, and the modules of the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    settings = {
        "spark.ui.enabled": "false",
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
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # errors arrive as exceptions
    register(session)
    yield session
    session.stop()
