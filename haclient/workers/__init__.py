"""Calls functions of the application with messages: in turn, or in tasks, threads or processes.

`message_runner` calls one function with one message, and finishes the message. `keyed_pool` shares
messages among workers. Handlers of queues (`queue_handlers`) and `run_workers` (`pools`) use both.
"""

from haclient.workers.pools import ProcessPool, ThreadPool, run_workers

__all__ = ["ProcessPool", "ThreadPool", "run_workers"]
