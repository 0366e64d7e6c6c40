"""Every decision of a client, as pure functions, tables and states, without trio."""
