"""Where the time to first token of each request goes, part by part, and what the slowest ones waited for.

Reading order: ``parts`` (what is told apart), ``alone``, ``queue_log``, ``journey`` and ``chunks`` (how it is counted),
``recorder`` (which looks on while a run is simulated), ``source`` (which run is meant, and whether it is the same
again), ``explanation`` (by tenant and percentile band), ``story``, and how it is shown: ``table``, ``figure`` and
``files``.
"""
