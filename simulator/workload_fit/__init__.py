"""``kvcast workload fit``: a generator of requests that is like a trace.

Reading order: ``parts`` and ``apart`` (the tenants of a file, and what they lose by fits of their own), ``observed`` (a
trace as threads of turns), ``another`` and ``returning`` (whether and when a thread goes on), ``fit`` (the parts of a
``tree:`` source), ``likeness`` (trace and generator side by side), ``written`` (the file).
"""
