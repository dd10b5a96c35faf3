"""What a prefix cache of any size hits of a trace or a workload, without engine and without time.

One reading of the requests gives the hits of an LRU cache at every capacity (`lru`); eviction policies and the bound of
all of them are replayed at some capacities (`policies`), on a sample of the requests where there are many (`sample`);
instances behind a router that knows no time are replayed as well (`static_routing`).

Reading order: ``asked`` (a request as a cache sees it), ``source`` (where they come from), ``lru``, ``sample``,
``policies``, ``instance_cache``, ``static_routing``, ``study`` (all of it together), ``words``, ``table``, ``figure``,
``files``.
"""
