"""Instances that read each other's memory: what one lends, and the nodes that it reads."""
