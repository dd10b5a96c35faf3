"""Engine arguments and the configuration made of them; Ascend's block size whatever is asked for."""

import importlib
from types import SimpleNamespace


class EngineArgs:
    def __init__(
        self,
        model,
        scheduler_cls=None,
        max_num_batched_tokens=512,
        max_model_len=700,
        max_num_seqs=4,
        enforce_eager=False,
        async_scheduling=True,
        num_gpu_blocks_override=400,
        **others,
    ):
        unknown = set(others) - {"skip_tokenizer_init", "enable_prefix_caching", "disable_log_stats", "load_format"}
        if unknown:
            raise TypeError(f"EngineArgs got an unexpected keyword argument {min(unknown)!r}")
        self.__dict__.update(locals())

    def create_engine_config(self):
        scheduler = SimpleNamespace(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            async_scheduling=self.async_scheduling,
            get_scheduler_cls=lambda: resolve(self.scheduler_cls or "vllm.v1.core.sched.scheduler.Scheduler"),
        )
        sizes = [] if self.enforce_eager else [1, 2, 4, 8]
        return SimpleNamespace(
            scheduler_config=scheduler,
            model_config=SimpleNamespace(
                model=self.model,
                max_model_len=self.max_model_len,
                enforce_eager=self.enforce_eager,
                dtype="torch.bfloat16",
                get_vocab_size=lambda: 5000,
            ),
            cache_config=SimpleNamespace(num_gpu_blocks=self.num_gpu_blocks_override, block_size=128),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
            compilation_config=SimpleNamespace(
                cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE"), cudagraph_capture_sizes=sizes
            ),
        )


def resolve(path):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)
