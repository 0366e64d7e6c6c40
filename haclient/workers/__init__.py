"""Calls functions of the application with messages: in turn, or in tasks, threads or processes.

`message_runner` calls one function with one message, finishes the message, and shares messages
among workers. Handlers, handlers of queues (`queue_handlers`) and `run_workers` (`pools`) use it.
"""

from haclient.workers.pools import ProcessPool, ThreadPool, run_workers

__all__ = ["ProcessPool", "ThreadPool", "run_workers"]
