"""The command line: one module per command group, started by `main`."""

from haclient.cli.entry import main

__all__ = ["main"]
