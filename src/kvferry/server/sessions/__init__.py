"""The engines of a server: their sessions, what each holds, and the cache of each identity."""
