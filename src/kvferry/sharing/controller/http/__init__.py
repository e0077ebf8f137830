"""HTTP of the controller.

make_app      routes                                            app.py
asking        prompts and instances that a body names           asking.py
views         what there is, and where what is                  views.py
actions       what instances are asked to do: jobs and pins     actions.py
lmcache       the routes of LMCache's controller                lmcache.py
metrics       series for Prometheus                             metrics.py
answers       what they answer, as types                        answers.py
"""
