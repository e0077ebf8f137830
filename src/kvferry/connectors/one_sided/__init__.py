"""One-sided reads: the memory of another instance, read where both sides can, without its help.

`reads` is the connector, `leases` what it asks the other side for, `agent` and `nixl_agent` are who
reads.
"""
