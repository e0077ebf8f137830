"""`kvferry bench client`, `codec`, `load`: clients, disks and codecs beside their references."""
