"""vLLM's engine arguments: what a scenario may say (`EngineArgs`), and what the engine runs with (`EngineConfig`)."""

from simulator.engine_args.arguments import EngineArgs, refusal
from simulator.engine_args.command import Command, read_command
from simulator.engine_args.config import EngineConfig, platform, resolve
from simulator.engine_args.unmeasured import unmeasured

__all__ = ["Command", "EngineArgs", "EngineConfig", "platform", "read_command", "refusal", "resolve", "unmeasured"]
