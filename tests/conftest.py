"""What every test run shares."""

from support.house_rules import (
    pytest_addoption,
    pytest_collection_finish,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

__all__ = [
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]
