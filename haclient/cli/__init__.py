"""The command line: one module per command group, started by `main`."""

from haclient.cli.app import main

__all__ = ["main"]
