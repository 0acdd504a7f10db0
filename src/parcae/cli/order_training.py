"""`parcae train --world cores --network parcae`: the network that corrects the orders of the tuned rule."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from parcae.learning.order_evolution import Evolved
    from parcae.learning.scenario import Scenario


def refuse_gradients(given: Collection[str]) -> None:
    """Refuse options of training by gradients.

    Raises:
        ConfigError: one of them was given.
    """
    from parcae.errors import ConfigError

    for option in sorted(given):
        raise ConfigError(
            f"{option} does not apply to parcae in the world of cores, which is found by an evolution strategy: "
            "leave it out, or choose --world executors or --network decima"
        )


def evolve(
    scenarios: list[Scenario],
    rule: str,
    start: str | None,
    folder: Path,
    *,
    budget_s: float,
    generations: int | None,
    seed: int,
    is_resumed: bool,
    as_json: bool,
) -> None:
    """Train the network, say what came of it, and end with exit code 130 after an interruption.

    Names are resolved for the first scenario; the network serves all.

    Raises:
        InputError: a rule, a start or a folder that does not fit.
    """
    from parcae.cli.learning import ProgressLine
    from parcae.learning.order_evolution import BEST_FILE, EvolutionSettings, evolve_network

    scenario = scenarios[0]
    objective = str(scenario.objective)
    line = ProgressLine(budget_s)

    def show(found: Evolved) -> None:
        text = f"generation {found.generations}, {objective} {found.ratio_to_rule:.3f} of the rule at best"
        line.show(found.seconds, text)

    settings = EvolutionSettings()
    if generations is not None:
        settings = EvolutionSettings(max_generations=generations)
    found = evolve_network(
        scenarios,
        _rule_of(rule, scenario),
        budget_s=budget_s,
        start=None if start is None else _start_of(start, scenario),
        seed=seed,
        folder=folder,
        is_resumed=is_resumed,
        settings=settings,
        progress=show,
    )
    line.end()
    _tell(found, folder / BEST_FILE, objective, as_json)


def _rule_of(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """The parameters of the rule of the world of cores that `text` names, or of the rule in a network's checkpoint."""
    import numpy as np

    from parcae.errors import FormatError
    from parcae.policies.learned import find_checkpoint
    from parcae.policies.order_network.layout import KIND
    from parcae.policies.order_rule.layout import NUM_ORDER_PARAMETERS

    found = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    theta = found.weights.get("rule")
    if found.kind not in ("order-rule", KIND) or theta is None:
        raise FormatError(
            f"--rule {text}: no rule of the world of cores; make one with `parcae tune --world cores`"
        )
    if theta.shape != (NUM_ORDER_PARAMETERS,):
        raise FormatError(
            f"--rule {text}: {theta.size} parameters, where the rule of the world of cores has "
            f"{NUM_ORDER_PARAMETERS}; make it again with `parcae tune --world cores`"
        )
    return np.array(theta, np.float64)


def _start_of(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """The weights of the network of the world of cores that `text` names."""
    from parcae.policies.learned import find_checkpoint
    from parcae.policies.order_network.policy import network_weights

    found = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    return network_weights(found, f"--start {text}")


def _tell(found: Evolved, best: Path, objective: str, as_json: bool) -> None:
    if as_json:
        told = {
            "output": str(best),
            "generations": found.generations,
            "simulated_runs": found.evaluations,
            "seconds": round(found.seconds, 1),
            "ratio_to_rule_on_selection_runs": found.ratio_to_rule,
            "ending": found.ending,
        }
        typer.echo(json.dumps(told))
    else:
        typer.echo(
            f"{best}: {objective} {found.ratio_to_rule:.3f} of the rule's on the selection runs, after "
            f"{found.generations} generations ({found.evaluations:,} simulated runs, {found.seconds:.0f} s)"
        )
    if found.ending == "interrupted":
        typer.echo("interrupted; the same command with --resume goes on", err=True)
        raise typer.Exit(130)
