"""What users of kvferry need to test their own adapters: a small real transformer in NumPy."""
