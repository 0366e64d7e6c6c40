"""What has to be true of a machine and of a session before PySpark can run our data sources.

A data source in Python runs in three kinds of processes: the program that created the session (the
driver), planning workers on the driver's machine, and workers on the executors. PySpark starts the
workers with the interpreter that `PYSPARK_PYTHON` names, else with the first `python3` on the
`PATH`, and does not check that pyarrow is installed there. Without it, a worker exits without a
reason ("Python worker exited unexpectedly"). So everything is checked before the first query:

* `check_installation` needs no session: versions of pyspark and pyarrow, and Java.
* `register` checks the workers of a session as well. If they run on this machine and nobody has
  chosen their interpreter, they get the one of the driver, which was checked. Otherwise a job with
  one task asks a worker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haclient.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL: Final = "pip install 'haclient[pyspark]'"

MINIMUM_PYSPARK: Final = (4, 2)
"""The first release with limits for each trigger of a stream and with `Trigger.AvailableNow`."""

MINIMUM_PYARROW: Final = (18, 0)
"""What pyspark 4.2 asks for."""

MINIMUM: Final[dict[str, tuple[int, int]]] = {
    "pyspark": MINIMUM_PYSPARK,
    "pyarrow": MINIMUM_PYARROW,
    "numpy": (1, 26),
}
"""The packages of the driver. Workers have the pyspark of their cluster."""

MINIMUM_JAVA: Final = 17
"""What pyspark 4 asks for."""

SOURCES: Final[dict[str, str]] = {
    "haclient.pyspark.amps": "AmpsDataSource",
    "haclient.pyspark.journal.source": "JournalDataSource",
}
"""By module, the class of every data source."""

_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
_JAVA_LIMIT_S: Final = 60.0
"""How long `java -version` may take on a busy machine."""


def register(spark: SparkSession, *, probe_workers: bool | None = None) -> None:
    """Check the environment of a session, and make the data sources known to it.

    Without `PYSPARK_PYTHON`, workers on this machine (`local[n]`) are given the interpreter of this
    program. Workers that run elsewhere, or with another interpreter, are asked by a job with one
    task whether they have what the data sources need.

    Args:
        spark: A session, classic or of Apache Spark Connect.
        probe_workers: Whether to run that job; `None` runs it where it can tell something new.

    Raises:
        UsageError: Something is missing or too old; the message says what to do.
    """
    check_packages()
    _check_version("Apache Spark", spark.version, MINIMUM_PYSPARK, "use a newer cluster")
    if _context_of(spark) is not None:  # elsewhere, the directory of the server counts
        check_imported(Path.cwd())
    is_driver_like = _choose_interpreter(spark)
    _send_path(spark)
    if probe_workers or (probe_workers is None and not is_driver_like):
        probe(spark)
    for module, name in SOURCES.items():
        spark.dataSource.register(getattr(import_module(module), name))


def check_installation(environ: Mapping[str, str] | None = None) -> None:
    """Check what can be checked before there is a session: pyspark, pyarrow and Java.

    Args:
        environ: The environment variables; those of this process by default.

    Raises:
        UsageError: Something is missing or too old; the message says what to do.
    """
    check_packages()
    problem = java_problem(os.environ if environ is None else environ)
    if problem:
        raise UsageError(problem)


def check_packages() -> None:
    """Check the packages of this interpreter.

    Raises:
        UsageError: One is missing or too old.
    """
    for name, minimum in MINIMUM.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            # pyspark-client has no classic session and installs the same package
            found = _version_of_module(name)
        if not found:
            raise UsageError(f"{name} is missing in {sys.executable}: {INSTALL}")
        _check_version(name, found, minimum, INSTALL)


def check_imported(folder: Path) -> None:
    """Check that PySpark does not import a program of the user when it looks for data sources.

    It imports each module on the path whose name begins with `pyspark_`, in a worker that begins in
    the working directory, again for each look-up. A program without a guard starts a session there.

    Args:
        folder: The working directory.

    Raises:
        UsageError: It has such a file.
    """
    for path in sorted(folder.glob("pyspark_*.py")):
        raise UsageError(
            f"{path} is imported by PySpark each time that it looks for a data source, since its "
            "name begins with pyspark_: rename it, or run in another directory"
        )


def java_problem(environ: Mapping[str, str]) -> str:
    """Why Java cannot run PySpark here, in one line; empty when it can.

    Args:
        environ: The environment variables `JAVA_HOME` and `PATH`, as PySpark reads them.
    """
    advice = f"install Java {MINIMUM_JAVA} or later, and set JAVA_HOME if it is not on the PATH"
    home = environ.get("JAVA_HOME")
    found = (
        str(Path(home) / "bin" / "java")
        if home
        else shutil.which("java", path=environ.get("PATH", ""))
    )
    if found is None:
        return f"Java is missing: {advice}"
    try:
        shown = subprocess.run(  # noqa: S603 - the program that PySpark itself is going to start
            [found, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_LIMIT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"{found} -version has failed ({error}): {advice}"
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    if match is None or int(match.group(1)) < MINIMUM_JAVA:
        first = shown.strip().partition("\n")[0]
        return f"{found} is {first or 'of an unknown version'}: {advice}"
    return ""


def probe(spark: SparkSession) -> None:
    """Ask one worker, by a job with one task, for what the data sources need.

    Args:
        spark: A session.

    Raises:
        UsageError: The worker did not start, or something is missing there.
    """
    from pyspark.cloudpickle.cloudpickle import list_registry_pickle_by_value  # noqa: PLC0415 - an extra
    from pyspark.sql.functions import lit, udf  # noqa: PLC0415 - the same

    # A plain row-by-row function: it runs without pyarrow, which may be what is missing.
    ask = udf(_worker_report(), "string", useArrow=False)
    try:
        answer = str(spark.range(1).select(ask(lit(0))).collect()[0][0])
    except job_errors() as error:
        lines = str(error).strip().splitlines()
        why = next((line for line in lines if "Exception:" in line), lines[0])
        wanted = os.environ.get(_PYTHON_VARIABLE) or "python3 on the PATH"
        raise UsageError(
            f"the workers' Python ({wanted}) does not run ({why.strip()}): set "
            f"{_PYTHON_VARIABLE} to an interpreter that every worker has"
        ) from error
    parts = (line.partition("=") for line in answer.splitlines())
    found = {name: value for name, _, value in parts}
    registered: set[str] = list_registry_pickle_by_value()  # type: ignore[no-untyped-call]  # theirs
    by_value = {name.partition(".")[0] for name in registered}
    check_worker(found, is_shipped="haclient" in by_value)


def check_worker(found: Mapping[str, str], *, is_shipped: bool) -> None:
    """Judge what a worker has said of itself.

    Args:
        found: `python`, `executable`, and the versions of `pyarrow`, `numpy` and `haclient`, which
            are empty where they are missing.
        is_shipped: The code of haclient travels with the query, so it need not be installed.

    Raises:
        UsageError: Something is missing or too old.
    """
    where = f"on a worker ({found['executable']})"
    wanted = ".".join(map(str, sys.version_info[:2]))
    if found["python"] != wanted:
        raise UsageError(
            f"the driver runs Python {wanted}, Python {found['python']} was found {where}: set "
            f"{_PYTHON_VARIABLE} to a Python {wanted}"
        )
    for name in ("pyarrow", "numpy"):
        if not found[name]:
            advice = f"install it there, or set {_PYTHON_VARIABLE} to a Python that has it"
            raise UsageError(f"{name} is missing {where}: {advice}")
        _check_version(f"{name} {where}", found[name], MINIMUM[name], "install a newer one")
    if not found["haclient"] and not is_shipped:
        raise UsageError(
            f"haclient is missing {where}: install it there, send it with --py-files, or call "
            "pyspark.cloudpickle.register_pickle_by_value(haclient) before register"
        )


def job_errors() -> tuple[type[Exception], ...]:
    """The exceptions of a failed job; Apache Spark Connect has no py4j."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the same
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JJavaError


def _worker_report() -> Callable[[object], str]:
    """A function for a worker, which imports nothing of ours: it may not be there."""

    def report(_: object) -> str:
        import sys  # noqa: PLC0415 - the function is sent by value
        from importlib import import_module  # noqa: PLC0415 - the same

        def version_of(name: str) -> str:
            try:
                return str(import_module(name).__version__)
            except ImportError:
                return ""

        found = {
            "python": ".".join(map(str, sys.version_info[:2])),
            "executable": sys.executable,
            **{name: version_of(name) for name in ("pyarrow", "numpy", "haclient")},
        }
        return "\n".join(f"{name}={value}" for name, value in found.items())

    report.__module__ = "__main__"  # what is of a module is sent by its name
    return report


def _choose_interpreter(spark: SparkSession) -> bool:
    """Give workers on this machine our interpreter; whether they run with it now."""
    context = _context_of(spark)
    if context is None or not str(context.master).startswith("local"):
        return False
    if not os.environ.get(_PYTHON_VARIABLE):
        # Read by every context when it begins, and by this one for every function that it sends.
        os.environ[_PYTHON_VARIABLE] = sys.executable
        context.pythonExec = sys.executable
    found = shutil.which(str(context.pythonExec))
    return found is not None and Path(found).absolute() == Path(sys.executable).absolute()


def _send_path(spark: SparkSession) -> None:
    """Let the process that plans a stream import haclient from the file that `--py-files` has sent.

    PySpark looks for such files in a directory where it never puts them, but in this one process,
    which runs on this machine: so it may have the path that this program has.
    """
    context, file = _context_of(spark), Path(__file__).parents[2]
    if context is not None and file.is_file():  # else it is a directory: installed, or a checkout
        paths = str(context.environment.get("PYTHONPATH", "")).split(os.pathsep)
        wanted = dict.fromkeys((str(file), *filter(None, paths)))
        context.environment["PYTHONPATH"] = os.pathsep.join(wanted)


def _context_of(spark: SparkSession) -> Any:  # noqa: ANN401 - what it has is not typed
    """The context of a session; absent in Apache Spark Connect, where the server has chosen."""
    return getattr(spark, "_sc", None)


def _version_of_module(name: str) -> str:
    try:
        # A folder of that name on the path is an empty package, without a version.
        return str(getattr(import_module(name), "__version__", ""))
    except ImportError:
        return ""


def _check_version(name: str, found: str, minimum: Iterable[int], advice: str) -> None:
    wanted = tuple(minimum)
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[: len(wanted)])
    if numbers < wanted:
        text = ".".join(map(str, wanted))
        raise UsageError(f"{name} {text} or later is needed, {found} was found: {advice}")
