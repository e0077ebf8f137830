"""Figures on a lent GPU machine without a network: what travels there, and what it measures."""
