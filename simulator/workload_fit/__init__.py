"""``kvcast workload fit``: a generator of requests that is like a trace.

Reading order: ``observed`` (a trace as threads of turns), ``another`` and ``returning`` (whether and when a thread goes
on), ``fit`` (the parts as a ``tree:`` source), ``likeness`` (trace and generator side by side), ``written`` (the file).
"""
