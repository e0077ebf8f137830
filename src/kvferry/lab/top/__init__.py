"""`kvferry top`: a server or caches of this host, seen again and again."""
