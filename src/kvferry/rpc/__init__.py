"""How processes of ours speak: messages of msgpack over ZeroMQ's wire protocol.

ZmtpParser    bytes to messages, without a socket               zmtp.py
Listener      the side that is asked: endpoints, connections    listener.py
Channel       the side that asks: one connection                channel.py
ServerLink    sockets that callers take, one exchange each      link.py
"""
