"""Redis/Valkey clients for KV-cache chunks: native (blocking, asyncio, raw) and pure Python."""
