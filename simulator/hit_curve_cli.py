"""``kvcast hit-curve``: the command that ``kvcast`` loads by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from simulator.errors import InputError
from simulator.trace_options import READING, Quantity, opened_trace

if TYPE_CHECKING:
    from simulator.eviction import EvictionSpec
    from simulator.hit_curve.source import Source
    from simulator.hit_curve.study import Pool

_PATH = click.Path(path_type=Path)
_COUNT = Quantity("positive_count", "number")
_INSTANCES = (1, 2, 4, 8)
# Options of traces, and what says it instead where a scenario is read.
_OF_TRACES = {
    "block_size": ("--block-size", "engine.block_size"), "profile": ("--profile", "profile"),
    "as_file": ("--as-file", "nothing, since its engine counts"), "format_": ("--format", "a trace's format"),
    "options": ("--option", "a trace's own keys"), "strict": ("--strict", "a trace's strict"),
}  # fmt: skip


class _Counts(click.ParamType):
    """Counts with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises InputError that names the option."""
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(_COUNT.convert(part, param, ctx) for part in value.split(",")))


_COUNTS = _Counts()


@click.command("hit-curve", context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.argument("source", type=_PATH, metavar="TRACE_OR_SCENARIO")
@click.option("--block-size", type=_COUNT, help="Tokens of a block [the profile's, else the file's own, else 16].")
@click.option("--at", "capacities", type=_COUNTS, default=(), metavar="BLOCKS,...",
              help="Sizes of the cache [1, 2, 5, 10, ... until all fits].")  # fmt: skip
@click.option("--policy", "policies", multiple=True, metavar="NAME[:KEY=VALUE,...]",
              help="A policy of kvcast evictions, beside LRU and Belady's bound (repeatable).")  # fmt: skip
@click.option("--profile", help="Mark the pool that this profile's device holds, in blocks of its engine.")
@click.option("--pool", "num_blocks", type=_COUNT,
              help="Mark a pool of so many blocks an instance (of a scenario: in place of its own).")  # fmt: skip
@click.option("--instances", type=_COUNTS, default=(), metavar="N,...",
              help="Numbers of instances, each with a pool [1, or 1,2,4,8 with --router].")  # fmt: skip
@click.option("--router", "routers", multiple=True, metavar="NAME[:NUMBER]",
              help="Route to that many instances, without time: round_robin, random, session, longest_prefix, match, "
                   "cost (repeatable).")  # fmt: skip
@click.option("--as-file", is_flag=True, help="Each id of the file is a block, a partial last one too; all may hit.")
@READING
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and nothing else.")
@click.option("-o", "--output", type=_PATH, help="Folder for the figure (SVG, PNG) and the numbers (JSON, CSV).")
def hit_curve(
    source: Path, capacities: tuple[int, ...], policies: tuple[str, ...], instances: tuple[int, ...],
    routers: tuple[str, ...], as_json: bool, output: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Hit rate against cache size, for a trace in any format or the workload of a scenario (YAML).

    One reading gives the exact hits of an LRU cache of every size, as vLLM counts: whole blocks, one token of a prompt
    always computed, requests one at a time. Beside it: the ceiling of a boundless cache, Belady's bound and eviction
    policies (replayed, on a sample of a large trace), the pool of your device, and instances behind simple routers:

    \b
    match:0.3   the longest match if it is more than 0.3 of the prompt, else the least load
    cost:0.02   the least uncached blocks + 0.02 x load above the mean

    Load is the uncached blocks assigned so far.
    """
    from simulator.hit_curve.policies import parse_policies, with_bound
    from simulator.hit_curve.static_routing import parse_rules
    from simulator.hit_curve.study import study

    specs, rules = parse_policies(policies), parse_rules(routers)
    if output is not None:
        from simulator.report import check_writable

        check_writable(output)
    opened = _opened(source, **given)
    if opened.pool is None and (rules or instances):
        raise InputError(f"--{'router' if rules else 'instances'}: how large is a pool? expected --pool or --profile")
    found = study(
        opened.source, capacities=capacities, policies=with_bound((*opened.policies, *specs)), rules=rules,
        instances=instances or opened.instances or (_INSTANCES if rules else (1,)), pool=opened.pool,
    )  # fmt: skip
    if as_json:
        from simulator.hit_curve.files import as_text

        click.echo(as_text(found.to_json()))
    else:
        from rich.console import Console

        from simulator.hit_curve.table import print_study

        print_study(found, Console())
    if output is not None:
        from simulator.hit_curve.files import write

        write(found, output)
        if not as_json:
            click.echo(f"Figure: {output / 'hit_curve.svg'}")


class _Opened(NamedTuple):
    """The requests, what an instance holds, how many instances there are, and what they evict by."""

    source: Source
    pool: Pool | None
    instances: tuple[int, ...] = ()
    policies: tuple[EvictionSpec, ...] = ()


def _opened(path: Path, num_blocks: int | None, **given: Any) -> _Opened:
    if path.suffix not in (".yaml", ".yml"):
        return _of_trace(path, num_blocks, **given)
    for name, value in given.items():
        if value:
            option, key = _OF_TRACES[name]
            raise InputError(f"{option}: is for traces; of a scenario ({path}) that is told by {key}")
    return _of_scenario(path, num_blocks)


def _of_scenario(path: Path, num_blocks: int | None) -> _Opened:
    from simulator.eviction import VLLM
    from simulator.hit_curve.asked import Counting
    from simulator.hit_curve.source import of_scenario
    from simulator.hit_curve.study import Pool
    from simulator.scenario import load

    scenario = load(path)
    config = scenario.engine_config
    if not config.enable_prefix_caching:
        raise InputError(f"{path}: engine.enable_prefix_caching: got false, expected true: nothing is ever hit")
    try:
        requests = of_scenario(scenario, Counting(config.block_size))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    # vLLM's null block never holds anything.
    pool = Pool(config.num_gpu_blocks - 1, "the scenario") if num_blocks is None else Pool(num_blocks, "--pool")
    policies = () if scenario.eviction.policy in (VLLM, "lru") else (scenario.eviction,)
    return _Opened(requests, pool, (scenario.cluster.instances,), policies)


def _of_trace(
    path: Path, num_blocks: int | None, block_size: int | None, profile: str | None, as_file: bool,
    format_: str | None, options: Sequence[str], strict: bool,
) -> _Opened:  # fmt: skip
    from simulator.hit_curve.source import counting_of, of_trace
    from simulator.hit_curve.study import Pool
    from simulator.profile import load_profile

    if profile is not None and num_blocks is not None:
        raise InputError("--pool: got one beside --profile, expected one of the two")
    device = None if profile is None else load_profile(profile)
    trace = opened_trace(path, format_, options, strict)
    wanted = block_size or (device.block_size if device is not None and not as_file else None)
    counting = counting_of(trace, path, wanted, as_file=as_file)
    pool = None if num_blocks is None else Pool(num_blocks, "--pool")
    if device is not None:
        fitting = device.num_gpu_blocks(counting.block_size) - 1  # vLLM's null block never holds anything
        if fitting < 1:
            raise InputError(f"--profile {device.name}: no block of {counting.block_size} tokens fits but the null one")
        pool = Pool(fitting, f"profile {device.name}")
    return _Opened(of_trace(trace, path, counting), pool)
