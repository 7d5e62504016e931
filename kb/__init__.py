"""Facts: the records that all rooms share, the DuckDB store, and queries. Nothing here knows about searches or GPUs."""
