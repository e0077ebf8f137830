"""The tiered cache."""
