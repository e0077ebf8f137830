"""What the distance to a store costs an inference server: `kvferry lab latency`.

`link.py` makes the distance, `cells.py` asks and counts what was waited for on the wire,
`figures.py` makes rows of it, `report.py` shows them.
"""
