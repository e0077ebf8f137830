"""The cache server: one pool in shared memory for every engine process of a host.

    protocol    what is said                               protocol.py
    Client      the engine's side                          client.py
    Server      the other one                              server.py

Engines register, are told of a shared segment, map it, and copy their chunks straight in and out.
The socket carries hashes and page numbers only.
"""
