"""Facts: the records that all floors share, the DuckDB store, queries. Knows no search and no GPU."""
