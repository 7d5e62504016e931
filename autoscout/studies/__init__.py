"""The laboratory: strategies compared side by side, and other people's searches. The product works without it."""
