"""HTTP of the controller.

make_app      routes                                            app.py
prompts       prompts and instances that a body names           prompts.py
views         what there is, what is where, and the metrics     views.py
usage         what instances have done, what fills their memory usage.py
actions       jobs, pins and quotas                             actions.py
lmcache       the routes of LMCache's controller                lmcache.py
answers       what all of them answer, as types                 answers.py
"""
