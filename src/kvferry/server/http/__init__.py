"""HTTP beside the cache server: health, metrics, and what people ask of it.

HttpSide      routes, and the thread that serves them      side.py
http_calls    what each route does                         http_calls.py, prefetch.py
"""
