"""haclient_fake_server."""
