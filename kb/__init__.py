"""Facts: the records that all rooms share, the DuckDB store, and queries. It knows no search and no GPU."""
