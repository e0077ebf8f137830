"""What the tests stand on: real servers, a fault proxy, a scripted server.

servers.py starts real ones, proxy.py stands between a client and one of them and breaks things,
scripted.py answers what no real server would. fixtures.py is the pytest plugin.
"""
