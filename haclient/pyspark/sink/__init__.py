"""The sink of `format("amps")`: rows become messages, each lane of rows has a publisher."""
