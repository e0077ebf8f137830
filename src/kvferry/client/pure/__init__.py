"""The client in pure Python: the same calls and answers where the extension cannot be loaded."""
