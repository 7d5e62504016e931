"""Benchmarks that compare search strategies, and implementations of published rival strategies. The rest of AutoScout
does not depend on this package."""
