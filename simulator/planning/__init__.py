"""The cheapest cluster that meets its targets, how sure that is, and how far it reaches.

Reading order: ``space`` (what may be chosen, and what it costs), ``outcome`` (what is kept of a run), ``evidence``
(the runs so far), ``judging`` (whether a setting meets the targets), ``search`` (which settings are looked at),
``headroom`` and ``nines`` (what is asked of the answer), ``planner`` (one after the other), ``answer`` (what it all
says), ``words``, ``figures`` and ``report``. Targets and free keys are read in ``scenario.plan_spec``, loads in
``scenario.offered_load``.
"""
