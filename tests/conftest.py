"""What every test run shares."""

from haclient_fake_server.pytest_plugin import (
    amps_broker,
    amps_broker_process,
    amps_cluster,
    amps_memory_broker,
    amps_under_trio,
)
from support.house_rules import (
    full_length,
    pytest_addoption,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

# The fixtures by name and not as a plugin: where the package is installed, pytest has loaded that
# already and would refuse it a second time; in a bare checkout it has not.
__all__ = [
    "amps_broker",
    "amps_broker_process",
    "amps_cluster",
    "amps_memory_broker",
    "amps_under_trio",
    "full_length",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]
