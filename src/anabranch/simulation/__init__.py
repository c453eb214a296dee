"""All parties of a run in one process: the compiled loop, its metrics and its result."""
