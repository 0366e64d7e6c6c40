"""The journal files of a broker as DataFrames: `format("amps-journal")`."""
