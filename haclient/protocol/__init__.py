"""The AMPS wire protocol: pure functions and values, without input, output or clock."""
