"""The clients for programs that run trio."""

from haclient.client.base import BaseClient
from haclient.client.client import Client
from haclient.client.ha_client import HAClient

__all__ = ["BaseClient", "Client", "HAClient"]
