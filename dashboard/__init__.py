"""The dashboard: reads log directories, never writes them."""
