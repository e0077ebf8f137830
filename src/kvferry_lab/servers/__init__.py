"""Servers that the lab starts, and the ways to one of this host."""
