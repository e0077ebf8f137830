"""The controller: which instances there are, what each of them holds, and what they should do.

run                the process: ports, HTTP, signals                       run.py
Controller         what is known, and the thread that hears the instances  controller.py
Ports              connections of instances                                ports.py
Members            who lives, and what each has said that it holds         members.py
Traffic            what members have done, and read from each other        traffic.py
Jobs               what instances are asked to do                          jobs.py
Quotas             what instances may hold                                 quotas.py
Journal            what happened                                           journal.py
Prefixes           which prefixes were asked for                           prefixes.py
SharedDirectory    what several controllers share in a store               shared_directory.py
MemberLogs         what is written there of a controller's own members     member_logs.py
http               HTTP for people, routers and the page                   http/
page               the page                                                page/

Everything it knows comes from the instances and is kept in memory alone: killing it costs hints,
and a new one knows the same when the instances have found it.
"""
