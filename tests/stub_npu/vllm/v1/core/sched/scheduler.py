"""Chunked prefill, first come first served, full-block prefix hits."""

from types import SimpleNamespace


class Scheduler:
    def __init__(self, config):
        self.config = config
        self.requests = {}
        self.cached = set()

    def add(self, name, prompt, max_tokens):
        size, hit = self.config.cache_config.block_size, 0
        while hit + size < len(prompt) and tuple(prompt[: hit + size]) in self.cached:
            hit += size
        self.requests[name] = SimpleNamespace(
            prompt=prompt, num_computed_tokens=hit, hit=hit, num_output_tokens=0, max_tokens=max_tokens
        )

    def schedule(self):
        budget, numbers = self.config.scheduler_config.max_num_batched_tokens, {}
        for name, request in self.requests.items():
            new = min(len(request.prompt) + request.num_output_tokens - request.num_computed_tokens, budget)
            if new > 0:
                numbers[name] = new
                request.num_computed_tokens += new
                budget -= new
        return SimpleNamespace(num_scheduled_tokens=numbers)

    def update_from_output(self, scheduler_output, sampled):
        size, outputs = self.config.cache_config.block_size, []
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests[name]
            known = len(request.prompt) + request.num_output_tokens
            self.cached.update(tuple(request.prompt[:end]) for end in range(size, len(request.prompt) + 1, size))
            if request.num_computed_tokens == known:
                request.num_output_tokens += 1
                reason = "length" if request.num_output_tokens == request.max_tokens else None
                outputs.append((name, sampled, request.hit, reason))
                if reason:
                    del self.requests[name]
        return outputs
