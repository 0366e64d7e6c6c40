"""haclient is sent along with a job, as docs/pyspark_clusters.md says, to a Python without it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from support.documents import blocks
from support.pipeline_program import Found
from support.pipelines import PROGRAM, check, pipeline
from support.standalone_cluster import StandaloneCluster, setting_words, spark_environment
from support.warm_python import WARM_PYTHON

pytestmark = pytest.mark.timeout(1800)  # half a minute on a quiet machine

REPOSITORY = Path(__file__).parents[2]
GUIDE = REPOSITORY / "docs/pyspark_clusters.md"


@pytest.fixture(scope="module")
def lean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all dependencies of haclient, without haclient."""
    folder = tmp_path_factory.mktemp("lean")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    # A folder that a `.pth` names is on the path; its own `.pth` files, such as that of an
    # installation of this checkout, have no effect.
    packages = [each for each in sys.path if Path(each).name in {"site-packages", "dist-packages"}]
    own = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(own) / "dependencies.pth").write_text("\n".join(packages), encoding="utf-8")
    return python


def documented() -> tuple[str, list[str]]:
    """What the guide says: a program that makes the file, and the command that submits another."""
    section = GUIDE.read_text(encoding="utf-8").partition("`--py-files`\n")[2]
    build, submit = blocks(section.partition("\n## ")[0])[-2:]
    return build.text, shlex.split(submit.text)


@pytest.fixture(scope="module")
def submit(lean_python: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the guide, with a file that was made as it says."""
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("haclient", "stores", "fake_server"):
        (checkout / name).symlink_to(REPOSITORY / name)
    build, submit = documented()
    subprocess.run([lean_python, "-c", build], cwd=checkout, check=True)
    bin_folder = Path(spark_environment(checkout)["SPARK_HOME"]) / "bin"
    places = {
        "spark-submit": bin_folder / "spark-submit",
        "haclient.zip": checkout / "haclient.zip",
        "stream.py": PROGRAM,
    }
    program, *options = (str(places.get(word, word)) for word in submit)
    return [program, *setting_words(), *options]


def environment(folder: Path, python: Path) -> dict[str, str]:
    """Of a process that finds haclient only where it was sent."""
    variables = {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    found = spark_environment(folder, variables)
    return {name: each for name, each in found.items() if name not in {"PYTHONPATH", WARM_PYTHON}}


def check_sent(found: Found) -> None:
    check(found)
    assert ".zip/haclient/" in found.driver
    assert ".zip/haclient/" in found.worker


def test_the_interpreter_has_no_haclient_of_its_own(lean_python: Path, tmp_path: Path) -> None:
    for module, code in (("haclient", 1), ("haclient_stores", 1), ("trio, msgspec, pyspark", 0)):
        done = subprocess.run(
            [lean_python, "-c", f"import {module}"],
            env=environment(tmp_path, lean_python),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert (b"No module named 'haclient" in done.stderr) is bool(code)


@pytest.mark.usefixtures("java")
def test_a_job_brings_haclient_along(submit: list[str], lean_python: Path, tmp_path: Path) -> None:
    command = ["local[2]" if "://" in word else word for word in submit]
    with pipeline(tmp_path) as world:
        check_sent(world.run(command, environment(tmp_path, lean_python)))


@pytest.mark.full
@pytest.mark.usefixtures("java")
def test_a_job_brings_haclient_to_the_executors_of_a_cluster(
    submit: list[str], lean_python: Path, tmp_path: Path
) -> None:
    with StandaloneCluster(tmp_path) as cluster, pipeline(tmp_path) as world:
        command = [cluster.master if "://" in word else word for word in submit]
        check_sent(world.run(command, environment(tmp_path, lean_python)))
