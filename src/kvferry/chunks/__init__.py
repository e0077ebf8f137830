"""Chunks: what they are called (`identity`, `generation`, `keys`), their shape (`layout`)."""
