"""From the log directory into the store."""
