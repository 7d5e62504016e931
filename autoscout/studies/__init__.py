"""The laboratory: strategies side by side, and other people's searches. The product does without it."""
