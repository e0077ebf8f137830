"""`kvferry tune`: which settings are the best for a server."""
