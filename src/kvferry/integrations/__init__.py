"""Adapters that let inference engines use kvferry; each imports its engine only where it must."""
