"""The engine in process."""

from types import SimpleNamespace


class LLMEngine:
    def __init__(self, config):
        self.vllm_config = config
        scheduler = config.scheduler_config.get_scheduler_cls()(config)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.scheduler = scheduler

    @classmethod
    def from_engine_args(cls, engine_args):
        return cls(engine_args.create_engine_config())

    def reset_prefix_cache(self):
        self.scheduler.cached.clear()
        return True

    def add_request(self, request_id, prompt, params):
        self.scheduler.add(request_id, prompt["prompt_token_ids"], params.max_tokens)

    def step(self):
        print("engines print to standard output")
        scheduled = self.scheduler.schedule()
        return [
            SimpleNamespace(
                request_id=name,
                num_cached_tokens=hit,
                outputs=[SimpleNamespace(token_ids=[token], finish_reason=reason)],
            )
            for name, token, hit, reason in self.scheduler.update_from_output(scheduled, 7)
        ]
