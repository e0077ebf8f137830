"""The engine's side of the cache server.

Client        what users hold                              sync.py, aio.py
Transfer      chunks into leased pages and out of them     transfer.py
Questions     everything else that is asked                questions.py
Caller        one request, its answer, what failed         caller.py
Link          sockets that callers take                    link.py
SessionThread registers, pings, says when the server goes  session_thread.py, session_connection.py
Session       what was registered, and the mapped segment  attachment.py
"""
