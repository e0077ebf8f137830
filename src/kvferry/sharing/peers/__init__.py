"""Instances that read each other's memory: what one lends, and the nodes that it reads.

Sharing        the part of this process: node, reporter, peers        instance.py
lending        by a node, and by one-sided reads                      lending.py
Peers          tiers of a cache that are the memory of others         peer_tier.py
SharedClears   clears for everybody among instances                   shared_clears.py
NamedNodes     nodes that single prompts name                         named_nodes.py
"""
