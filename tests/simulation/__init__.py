"""The whole system in one process, on a virtual clock, from one seed; see `simulator`."""
