"""`python -m simulation`: run seeds, shrink what fails, say how to repeat it."""

from __future__ import annotations

import sys

from simulation.command import main

sys.exit(main(sys.argv[1:]))
