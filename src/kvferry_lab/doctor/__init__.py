"""What `kvferry doctor` knows: gather facts, examine them, say what was found.

    gather    facts of every server, of this host, of the way between     touches the world
    examine   facts -> findings                                           pure: no I/O, no clock
    report    findings -> a page for people, or one JSON object

facts.py has the nouns, facts and findings. server, host, traffic and bare_tcp gather; rules_*.py
examine, one small function for each check, which is called by its `id` in every report.
model.py reads what a model's config.json says about its KV, and prefill.py whether a store can beat
computing it.

A fact that could not be read is `None`, never a guess: managed services hide a lot. The checks that
miss it are named in one finding, and all others are made.
"""
