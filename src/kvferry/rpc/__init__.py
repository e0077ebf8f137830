"""How processes of ours speak: messages of msgpack over ZeroMQ's wire protocol.

ZmtpParser     bytes to messages, without a socket                zmtp.py
Listener       who is asked: endpoints, connections, limits       listener.py
Service        a listener with a thread, and others for work      service.py, fair_pool.py
Channel        who asks: one connection                           channel.py
ServerLink     sockets that callers take, one exchange each       link.py
LocalService   processes of one user on one host, by name         local.py

The cache server has a loop of its own (`kvferry.server.dispatch`) and its messages in
`kvferry.server.protocol`. Ranks of vLLM and `kvferry top` use `LocalService`. Instances and
controllers have theirs in `kvferry.sharing.membership`.
"""
