"""Jobs over the rows of a journal: export, replay, audit, comparison of instances."""
