"""HTTP as the cache server and the controller speak it; each brings routes of its own.

Listener      a thread that serves an application          listener.py
Guard         tokens and origins; errors; JSON             answers.py
Bodies        their limits, and how they are parsed        bodies.py
Api           OpenAPI documents                            openapi.py
"""
