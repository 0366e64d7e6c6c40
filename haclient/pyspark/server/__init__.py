"""The log and the SOW of servers as DataFrames: the readers of `format("amps")`."""
