"""haclient_stores."""
