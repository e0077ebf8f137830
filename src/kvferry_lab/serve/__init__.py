"""An OpenAI-compatible server over the NumPy transformer: `kvferry serve-demo`.

`run.py` puts it together; `batcher.py` is the engine: one thread that computes for several requests
at a time, paced as a GPU would be; `chunks.py` makes KV of a real model's size of the transformer's
own; `app.py` is the HTTP side.
"""
