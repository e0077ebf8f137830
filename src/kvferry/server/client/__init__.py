"""The engine's side of the cache server.

Client           what users hold                              sync.py, aio.py
Transfer         chunks into leased pages and out of them     transfer.py
LookupQuestions  everything else that is asked                questions.py
Caller           one request, its answer, what failed         caller.py
ServerLink       sockets that callers take                    link.py
SessionThread    registers, pings, says when the server goes  session_thread.py
Session          what was registered, and the mapped segment  attachment.py
"""
