"""The bound that no real router reaches: who sees the engines as they are."""

from __future__ import annotations

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.router import Router
from simulator.routing.view import View


class Oracle(Router):
    """The instance with the fewest tokens left to prefill, the request's own uncached ones included; ties to the fewest
    requests, then to the lowest index.

    Nobody's product: it reads what the engines' caches and queues hold at this moment, and decides one request at a
    time: a bound on what better information buys, not the best of all schedules.
    """

    summary = "fewest tokens to prefill, by the engines' true state (no real router has it)"
    source = "upper bound, nobody's product"
    sees_truth = True

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        truth, size = view.truth, view.block_size

        def cost(instance: int) -> tuple[int, int]:
            own = request.num_prompt_tokens - truth.cached_blocks(request, instance) * size
            return truth.queued_tokens(instance) + own, view.num_in_flight[instance]

        return Send(min(range(self.num_instances), key=cost))
