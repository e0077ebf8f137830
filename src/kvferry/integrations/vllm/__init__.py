"""Adapters for vLLM. Importing this package imports neither vLLM nor torch."""
