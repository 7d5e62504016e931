"""Published search strategies, for comparison. Each is in a file named after it."""
