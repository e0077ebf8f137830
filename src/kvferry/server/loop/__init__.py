"""The server's loop: sockets, messages, and the order in which sessions are served."""
