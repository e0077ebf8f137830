"""HTTP beside the cache server: health, metrics, and what people ask of it.

HttpSide      a thread that serves                         side.py
make_app      routes                                       app.py
http_calls    what each route does                         http_calls.py, prefetch.py
"""
