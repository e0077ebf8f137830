"""`kvferry bench engines`: real engines as processes, and what a cache is worth to them."""
