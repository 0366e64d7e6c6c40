"""The command line: one module per command or group, started by `main`.

How a command line is carried out: `entry` prepares the process, `app` finds the command and turns
its errors into exit codes, `options` builds the command's request (a frozen dataclass) from the
parsed options, and the command's module does the work inside `termination.run_until_signal`, mostly
with a client of `connection.open_client` and an `output.OutputWriter`.

To add an option: give the request a field of its name, decorate the command with `click.option`,
use the field in the work, describe the option in `docs/command-line.md` (a test compares both), and
test it in the command's own test module. To add a command: write its module, and name it in `app`.
"""

from haclient.cli.entry import main

__all__ = ["main"]
