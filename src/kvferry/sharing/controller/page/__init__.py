"""The page for people: HTML from Python, kept fresh by a stream of events.

PageRoutes    the document, its files, and live views          routes.py
shell         what stands around a view                        shell.py
overview      hits, prefill saved, memory, alarms              overview.py
tables        processes, prefixes, transfers, memory, events   tables.py
actions       explain, jobs and pins                           actions.py
elements      HTML elements, tables, tiles, and what a view is elements.py
figures       numbers and charts                               figures.py
assets/       our style and script; the libraries come to lib/ when the package is built
"""
