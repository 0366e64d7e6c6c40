"""Lets a process of PySpark begin in a copy of a process that has imported everything.

Python imports this module when it starts, where `support.warm_python` has put its folder on the
path of PySpark's processes. Instead of importing for a second, the process hands its arguments,
environment and standard files to the server, which forks, and waits for the end of the fork.
"""

import os
import sys

_server = os.environ.get("HACLIENT_WARM_PYTHON")
if _server and sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2].startswith("pyspark."):
    import array
    import marshal
    from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket

    _line = socket(AF_UNIX, SOCK_SEQPACKET)
    _line.connect(_server)
    _message = marshal.dumps((sys.orig_argv[2:], dict(os.environ)))
    _line.sendmsg([_message], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    _line.recv(1)  # nothing: the fork, which has the other end, has ended
    os._exit(0)
