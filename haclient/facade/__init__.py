"""How `haclient.aio` and `haclient.blocking` call a trio client, which has a thread of its own."""
