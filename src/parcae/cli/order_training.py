"""`parcae train --world cores --network parcae`: the network that corrects the tuned rule."""

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
    """Raise an error if an option was given that exists only for training by gradients.

    Raises:
        ConfigError: such an option was given.
    """
    from parcae.errors import ConfigError

    # The error names the first option in alphabetical order.
    for option in sorted(given):
        raise ConfigError(
            f"{option} does not apply to parcae in the world of cores, which is trained by an "
            "evolution strategy: leave it out, or choose --world executors or --network decima"
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
    """Train the network and print the result; end with exit code 130 after an interruption.

    Args:
        scenarios: the settings that the network serves. Names of policies are resolved for the
            first.
        rule: name or file of the rule that the network corrects.
        start: name or file of a network to start from, or None.
        folder: where the state and the best network are written.
        budget_s: wall-clock seconds.
        generations: maximum number of generations, or None.
        seed: seed of the search.
        is_resumed: continue the search in the folder.
        as_json: print the result as JSON.

    Raises:
        InputError: the rule, the start or the folder cannot be used.
    """
    from parcae.cli.learning import ProgressLine
    from parcae.learning.order_evolution import BEST_FILE, EvolutionSettings, evolve_network

    scenario = scenarios[0]
    objective = str(scenario.objective)
    line = ProgressLine(budget_s)

    def show(evolved: Evolved) -> None:
        text = (
            f"generation {evolved.generations}, best {objective} {evolved.ratio_to_rule:.3f} of "
            "the rule"
        )
        line.show(evolved.seconds, text)

    settings = EvolutionSettings()
    if generations is not None:
        settings = EvolutionSettings(max_generations=generations)
    evolved = evolve_network(
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
    _print_result(evolved, folder / BEST_FILE, objective, as_json)


def _rule_of(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """The parameters of a rule of the world of cores, or of the rule in a network's checkpoint."""
    import numpy as np

    from parcae.errors import FormatError
    from parcae.policies.learned import find_checkpoint
    from parcae.policies.order_network.layout import KIND
    from parcae.policies.order_rule.layout import NUM_ORDER_PARAMETERS

    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    theta = checkpoint.weights.get("rule")
    if checkpoint.kind not in ("order-rule", KIND) or theta is None:
        raise FormatError(
            f"--rule {text}: no rule of the world of cores; make one with `parcae tune --world "
            "cores`"
        )
    # An earlier version of Parcae may have had other parameters.
    if theta.shape != (NUM_ORDER_PARAMETERS,):
        raise FormatError(
            f"--rule {text}: the checkpoint has {theta.size} parameters, but the rule of the world "
            f"of cores has {NUM_ORDER_PARAMETERS}; make it again with `parcae tune --world cores`"
        )
    return np.array(theta, np.float64)


def _start_of(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """The weights of a network of the world of cores, by its name or file."""
    from parcae.policies.learned import find_checkpoint
    from parcae.policies.order_network.policy import network_weights

    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    return network_weights(checkpoint, f"--start {text}")


def _print_result(evolved: Evolved, best: Path, objective: str, as_json: bool) -> None:
    if as_json:
        summary = {
            "output": str(best),
            "generations": evolved.generations,
            "simulated_runs": evolved.evaluations,
            "seconds": round(evolved.seconds, 1),
            "ratio_to_rule_on_selection_runs": evolved.ratio_to_rule,
            "ending": evolved.ending,
        }
        typer.echo(json.dumps(summary))
    else:
        typer.echo(
            f"{best}: {objective} {evolved.ratio_to_rule:.3f} of the rule's on the selection runs, "
            f"after {evolved.generations} generations "
            f"({evolved.evaluations:,} simulated runs, {evolved.seconds:.0f} s)"
        )
    if evolved.ending == "interrupted":
        typer.echo("interrupted: to continue, add --resume to the same command", err=True)
        raise typer.Exit(130)
