"""The server's memory: pools in shared memory, and what is kept over a restart."""
