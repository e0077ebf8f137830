"""`kvferry demo`: one process computes KV and stores it, another one loads it."""
