"""vLLM's KV blocks: how they lie in memory, and the copies in and out of them."""
