"""The controller: which instances there are, what each of them holds, and what they should do.

run           the process: ports, HTTP, signals                       run.py
Ports         connections of instances                                ports.py
Members       who lives, and what it has said that it holds           members.py
Jobs          what instances are asked to do                          jobs.py
Journal       what happened                                           journal.py
Prefixes      which prefixes were asked for                           prefixes.py
Controller    all of it, for those who ask                            controller.py
http          HTTP for people, routers and the page                   http/

Everything it knows comes from the instances and is kept in memory alone: killing it costs hints,
and a new one knows the same when the instances have found it.
"""
