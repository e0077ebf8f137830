"""Servers that the lab starts: a single one, a cluster, a cache server, with certificates."""
