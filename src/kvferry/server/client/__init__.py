"""The engine's side of the cache server.

Client        what users hold                              sync.py, aio.py
Transfer      chunks into leased pages and out of them     transfer.py
Caller        one request, its answer, what failed         caller.py
ServerLink    sockets that callers take                    kvferry.rpc.link
Counters      what a client counts                         counters.py
SessionThread registers, pings, says when the server goes  session_thread.py, session_connection.py
ClientSession what was registered, and the mapped segment  attachment.py
greet         asks before there is a session               session_connection.py
"""
