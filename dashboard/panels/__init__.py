"""What a panel shows, as data; drawing is done in the browser."""
