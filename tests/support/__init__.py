"""What the tests stand on: real servers, fault proxies, a scripted server.

servers.py starts real ones; cluster.py and sentinel.py several that belong together, with TLS by
tls.py and certificates.py. proxy.py stands between a client and one of them and breaks things;
toxics.py has names for these. scripted.py answers what no real server would. fixtures.py is the
pytest plugin.
"""
