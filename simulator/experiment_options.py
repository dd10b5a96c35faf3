"""What the commands that simulate share: their options, the setting that is meant, and a bar that shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulator.errors import InputError, nearest
from simulator.trace_options import Quantity

if TYPE_CHECKING:
    from simulator.precision import Precision
    from simulator.routing import RoutingSpec
    from simulator.scenario import Scenario

_COUNT, _POSITIVE_COUNT = Quantity("count", "number"), Quantity("positive_count", "number")
_MAX_REPLICATIONS = 100


def experiment_options(folder: str = "out/NAME") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The scenario, where its runs take place, and what of it is otherwise. ``folder``: where the report goes, unless
    somebody says so.
    """
    options = (
        click.argument("scenario", type=click.Path(path_type=Path)),
        click.option("-o", "--output", type=click.Path(path_type=Path), help=f"Folder of the report [{folder}]."),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else."),
        click.option("--jobs", type=_POSITIVE_COUNT, help="Processes [one a core]."),
        click.option("--executor", default="processes", help="Where to run: processes, dask or ray [processes]."),
        click.option("--address", help="The Dask scheduler's, or the Ray head's [Ray on this machine]."),
        click.option("--seed", type=_COUNT, help="Another seed than the scenario's."),
        click.option("--replications", type=_POSITIVE_COUNT, help="Other than the scenario's."),
        click.option("--limit", type=_POSITIVE_COUNT, help="At most so many requests a tenant."),
    )

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def replicating(function: Callable[..., None]) -> Callable[..., None]:
    """How many replications beyond the scenario's, and whether they draw the profile."""
    fixed = "Take the profile as it was fitted in every replication, in place of drawing its errors."
    function = click.option("--fixed-profile", is_flag=True, help=fixed)(function)
    narrow = "Go on replicating until every headline interval is within this share of its mean, as 5%."
    most = f"With --precision: no more replications than [{_MAX_REPLICATIONS}]."
    function = click.option("--max-replications", type=_POSITIVE_COUNT, help=most)(function)
    return click.option("--precision", type=Quantity("share", "share"), help=narrow)(function)


@contextmanager
def progress(what: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[], None] | None]:
    """Something to call after each of ``total`` parts (None: nobody knows how many), drawn on stderr where that is a
    terminal.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def the_setting(scenario: Scenario, router: str | None, variant: str | None) -> Scenario:
    """The scenario with one routing policy, as one of its variants has it where there are some. Raises InputError."""
    chosen = the_variant(scenario, variant)
    return chosen.changed(routing=(_the_policy(chosen, router),))


def the_variant(scenario: Scenario, variant: str | None) -> Scenario:
    """The scenario as it is or, where it has variants, as this one has it. Raises InputError."""
    if variant is None and scenario.variants:
        raise InputError(f"--variant: missing, expected one of {', '.join(scenario.variants)}")
    return scenario if variant is None else scenario.variant(variant)


def the_precision(share: float | None, max_replications: int | None, replications: int) -> Precision | None:
    """What ``--precision`` and ``--max-replications`` ask for, None without them. Raises InputError."""
    from simulator.precision import Precision

    if share is None:
        if max_replications is not None:
            raise InputError("--max-replications: changes nothing without --precision")
        return None
    if not share:
        raise InputError("--precision: got 0, expected more than that")
    most = max_replications or _MAX_REPLICATIONS
    if most < replications or replications < 2:
        raise InputError(
            f"--precision: begins with the scenario's (or --replications) {replications} replications, expected 2 at "
            f"least and at most --max-replications ({most})"
        )
    return Precision(share, most)


def _the_policy(scenario: Scenario, wanted: str | None) -> RoutingSpec:
    known = {spec.label: spec for spec in scenario.routing}
    if wanted is None:
        if len(known) > 1:
            raise InputError(f"--router: missing, expected one of {', '.join(known)}")
        return scenario.routing[0]
    named = [spec for spec in scenario.routing if wanted in (spec.label, spec.name)]
    named = named or [spec for spec in scenario.routing if wanted == spec.policy]
    if not named:
        raise InputError(f"--router: the scenario has no policy {wanted!r}{nearest(wanted, known)}")
    if len(named) > 1:
        labels = ", ".join(spec.label for spec in named)
        raise InputError(f"--router: {wanted!r} names several, expected one of {labels}")
    return named[0]
