"""HTTP beside the cache server: health, metrics, and what people ask of it.

HttpSide      a thread that serves                         side.py
make_app      routes                                       app.py
calls         what each route does                         calls.py, prefetch.py, token_files.py
"""
