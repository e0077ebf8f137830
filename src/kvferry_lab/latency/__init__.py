"""What the distance to a store costs an inference server: `kvferry lab latency`.

`distance.py` makes the distance, `experiment.py` asks and counts what was waited for on the wire,
`cell_figures.py` makes rows of it, `report.py` shows them.
"""
