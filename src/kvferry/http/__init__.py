"""HTTP as the cache server and the controller speak it; each brings routes of its own.

HttpListener  a thread that serves an application          listener.py
Api           routes                                       routes.py
Bodies        their limits, and how they are parsed        bodies.py
Guard         tokens and origins; errors; JSON             answers.py
Description   OpenAPI document and page of an Api          description.py
AnswerLater   of calls that wait                           waits.py
as_csv        tables of answers                            csv_tables.py
"""
