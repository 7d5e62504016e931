"""The record types that all packages share, the knowledge base (DuckDB), and queries; nothing about search or GPUs."""
