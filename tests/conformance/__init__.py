"""The facts of the AMPS wire, each shown to a server over plain sockets; see `conftest.py`."""
