"""One store behind the cache: what was learnt about it, what it holds, what is written to it."""
