"""Facts: the records everybody speaks in, the DuckDB store, queries. Knows no search and no GPU."""
