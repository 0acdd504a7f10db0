"""`parcae tune` and `parcae train`: policies learned for a workload."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.options import (
    ArrivalsOption,
    ClassesOption,
    CoresOption,
    ErrorOption,
    ExecutorsOption,
    JobsOption,
    ModelOption,
    MovingOption,
    ReferenceOption,
    UnknownOption,
    WarmupOption,
    WorkloadArgument,
    WorldOption,
    load,
    simulation_config,
)

if TYPE_CHECKING:
    from parcae.learning.scenario import Scenario
    from parcae.simulation.config import SimulationConfig

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective", help="average-jct | makespan | p95-jct | mean-slowdown | missed-deadlines"
    ),
]
BudgetOption = Annotated[
    float, typer.Option("--budget", min=0.01, help="Minutes of wall-clock time.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=255, help="Seed of the search or training.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def scenario_of(
    workload: str,
    cluster: SimulationConfig,
    jobs: int,
    arrivals: str,
    objective: str,
    parallelism_model: str,
) -> Scenario:
    """The scenario that the options describe.

    Raises:
        ConfigError: an objective or arrivals that are not understood, or that nothing can be learned on.
    """
    from parcae.errors import ConfigError
    from parcae.learning.scenario import Scenario
    from parcae.metrics.objectives import parse_objective
    from parcae.workloads.arrivals import ArrivalProcess

    if ArrivalProcess.parse(arrivals).kind == "recorded":
        raise ConfigError(
            "recorded arrivals are one sequence: learn on arrivals like them, e.g. poisson:25s or load:0.85"
        )
    return Scenario(
        load(workload, parallelism_model), cluster, arrivals, jobs, parse_objective(objective)
    )


AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        help='A further setting that must be served: "arrivals=load:0.8 jobs=60 cores=100".',
    ),
]


class ProgressLine:
    """One line that says how far a search or training is, with an estimate; quiet where nobody watches."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.is_shown = sys.stderr.isatty()

    def show(self, seconds: float, text: str) -> None:
        """Replace the line."""
        if self.is_shown:
            left = max(0.0, self.budget_s - seconds)
            sys.stderr.write(f"\r\033[K{seconds / self.budget_s:4.0%}  {left:5.0f} s left  {text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self.is_shown:
            sys.stderr.write("\n")


def tune_command(
    workload: WorkloadArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Checkpoint to write (*.safetensors).")
    ],
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    executor_classes: ClassesOption = None,
    jobs: JobsOption = 20,
    arrivals: ArrivalsOption = "batch",
    objective: ObjectiveOption = "average-jct",
    budget: BudgetOption = 3.0,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="A tuned rule to go on from: a checkpoint, or a name such as tuned:batch.",
        ),
    ] = None,
    also: AlsoOption = None,
    seed: SeedOption = 0,
    reference_semantics: ReferenceOption = False,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    unknown_share: UnknownOption = 0.0,
    estimate_error: ErrorOption = "log",
    as_json: JsonOption = False,
) -> None:
    """Tune the parametric rule for a workload by CMA-ES; with --also, one rule for several settings.

    The checkpoint always holds the best so far: an interrupted search goes on with --start.

    Example: parcae tune tpch --arrivals batch --jobs 20 --budget 3 -o tuned.safetensors
    """
    from parcae.learning.tune import Tuning, tune_rule, tuned_checkpoint
    from parcae.policies.checkpoint import write_checkpoint
    from parcae.policies.learned import require_durations, setting_card

    config = simulation_config(
        world=world,
        executors=executors,
        cores=cores,
        reference_semantics=reference_semantics,
        moving_delay_ms=moving_delay_ms,
        warmup_delay_ms=warmup_delay_ms,
        parallelism_model=parallelism_model,
        executor_classes=executor_classes,
        unknown_share=unknown_share,
        estimate_error=estimate_error,
    )
    scenario = scenario_of(workload, config, jobs, arrivals, objective, parallelism_model)
    require_durations(scenario.workload)
    card = setting_card(scenario.workload, scenario.config, arrivals, jobs)
    line = ProgressLine(budget * 60)

    def save(tuning: Tuning) -> dict[str, Any]:
        found = {
            "objective": objective,
            "also": also or [],
            "seed": seed,
            "generations": tuning.generations,
            "simulated_runs": tuning.evaluations,
            "seconds": round(tuning.seconds, 1),
            "ratio_to_fair_on_selection_runs": tuning.ratio_to_fair,
        }
        write_checkpoint(tuned_checkpoint(tuning.parameters, scenario, {**card, **found}), output)
        line.show(
            tuning.seconds,
            f"{tuning.generations} generations, {objective} {tuning.ratio_to_fair:.3f} of fair",
        )
        return found

    tuning = tune_rule(
        [scenario, *(_also(scenario, text) for text in also or [])],
        budget_s=budget * 60,
        start=_start(start, scenario, arrivals),
        seed=seed,
        progress=lambda t: (save(t), None)[1],
    )
    found = save(tuning)
    line.end()
    if as_json:
        typer.echo(json.dumps({**found, "output": str(output)}))
        return
    typer.echo(
        f"{output}: {objective} {tuning.ratio_to_fair:.3f} of fair on the selection runs, after {tuning.generations} generations "
        f"({tuning.evaluations:,} simulated runs, {tuning.seconds:.0f} s)\n"
        f"compare it on other runs: parcae compare {workload} --policies fair,weighted-fair:tuned,{output} "
        f"--arrivals {arrivals} --jobs {jobs}"
    )


def _also(scenario: Scenario, text: str) -> Scenario:
    """The scenario with other arrivals, jobs, executors (or cores) or errors of estimates."""
    from dataclasses import replace

    from parcae.errors import ConfigError
    from parcae.simulation.uncertainty import parse_estimate_error
    from parcae.workloads.arrivals import ArrivalProcess

    changes = dict(part.partition("=")[::2] for part in text.split())
    if "cores" in changes:
        changes["executors"] = changes.pop("cores")
    unknown = set(changes) - {"arrivals", "jobs", "executors", "estimate_error"}
    numbers = [changes.get(key, "1") for key in ("jobs", "executors")]
    if (
        unknown
        or not changes
        or not all(number.isdigit() and int(number) > 0 for number in numbers)
    ):
        raise ConfigError(
            f"--also {text!r}: write some of arrivals=..., jobs=N, cores=N (or executors=N) and "
            "estimate_error=SIGMA, separated by spaces"
        )
    arrivals = changes.get("arrivals", scenario.arrivals)
    config = scenario.config
    ArrivalProcess.parse(arrivals)
    if "executors" in changes:
        config = config.resized(int(changes["executors"]))
    if "estimate_error" in changes:
        error = parse_estimate_error(changes["estimate_error"])
        config = config.model_copy(update={"estimate_error": error})
    return replace(
        scenario,
        arrivals=arrivals,
        num_jobs=int(changes.get("jobs", scenario.num_jobs)),
        config=config,
    )


def _start(text: str | None, scenario: Scenario, arrivals: str) -> Any:
    if text is None:
        return None
    from parcae.learning.start import start_rule

    return start_rule(text, scenario, arrivals)


def train_command(
    workload: WorkloadArgument,
    folder: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Folder for the state, the best policy (best.safetensors) and TensorBoard.",
        ),
    ],
    network: Annotated[str, typer.Option("--network", help="parcae | decima")] = "parcae",
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="fast | decima-2019 [default: fast]", show_default=False),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="The tuned rule that parcae corrects and decima imitates: a checkpoint, or a name.",
        ),
    ] = "tuned",
    start: Annotated[
        str | None,
        typer.Option("--start", help="A trained network to start from: a checkpoint, or a name."),
    ] = None,
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    executor_classes: ClassesOption = None,
    jobs: JobsOption = 20,
    arrivals: ArrivalsOption = "batch",
    objective: ObjectiveOption = "average-jct",
    also: AlsoOption = None,
    budget: BudgetOption = 5.0,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations", min=1, help="End after so many; resuming is then exact to the last bit."
        ),
    ] = None,
    seed: SeedOption = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the folder's state.")
    ] = False,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu | cuda [default: cpu]", show_default=False)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Spread rollouts over the Ray cluster at this address."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value of a setting of the recipe: learning_rate=0.001"),
    ] = None,
    decima: Annotated[
        list[str] | None,
        typer.Option(
            "--decima",
            help="A part of Decima: features=code, has_graph=false, limits=outputs, idle_lengths=10",
        ),
    ] = None,
    reference_semantics: ReferenceOption = False,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    unknown_share: UnknownOption = 0.0,
    estimate_error: ErrorOption = "log",
    as_json: JsonOption = False,
) -> None:
    """Train a network for a workload; Ctrl-C saves, and --resume goes on.

    In the world of cores, parcae corrects the tuned rule's orders and is found by an evolution strategy, without PyTorch: there
    is no recipe, device or Ray cluster to choose, and with --also one network serves several settings. All else is trained by
    policy gradients.

    Example: parcae train tpch --arrivals batch --budget 5 -o training
    """
    from parcae.cli.order_training import evolve, refuse_gradients
    from parcae.simulation.config import WorldName

    cluster = simulation_config(
        world=world,
        executors=executors,
        cores=cores,
        reference_semantics=reference_semantics,
        moving_delay_ms=moving_delay_ms,
        warmup_delay_ms=warmup_delay_ms,
        parallelism_model=parallelism_model,
        executor_classes=executor_classes,
        unknown_share=unknown_share,
        estimate_error=estimate_error,
    )
    scenario = scenario_of(workload, cluster, jobs, arrivals, objective, parallelism_model)
    if network == "parcae" and cluster.world is WorldName.CORES:
        given = {
            "--recipe": recipe,
            "--device": device,
            "--ray": ray,
            "--set": settings,
            "--decima": decima,
        }
        refuse_gradients({option for option, value in given.items() if value})
        evolve(
            [scenario, *(_also(scenario, text) for text in also or [])],
            rule,
            start,
            folder,
            budget_s=budget * 60,
            generations=iterations,
            seed=seed,
            is_resumed=resume,
            as_json=as_json,
        )
        return

    from parcae.errors import ConfigError
    from parcae.learning.config import override
    from parcae.learning.recipes import parse_recipe, recipe_config
    from parcae.learning.run import TrainRequest, train_policy
    from parcae.learning.start import start_rule, start_weights
    from parcae.policies.decima.layout import DecimaSettings

    if also:
        raise ConfigError(
            "--also needs `parcae train --world cores --network parcae`: gradients are taken in one setting"
        )
    config = override(
        recipe_config(parse_recipe(recipe or "fast"), scenario, network), settings or []
    )
    line = ProgressLine(budget * 60)
    request = TrainRequest(
        scenario,
        config,
        network,
        parameters=start_rule(rule, scenario, arrivals)
        if network == "parcae" or config.imitation > 0
        else None,
        decima=override(
            DecimaSettings(executor_classes=len(scenario.config.classes) > 1), decima or []
        ),
        weights=start_weights(start, network, scenario, arrivals) if start else None,
        budget_s=budget * 60,
        max_iterations=iterations,
        seed=seed,
        folder=folder,
        is_resumed=resume,
        device=device or "cpu",
        ray_address=ray,
    )
    result = train_policy(
        request,
        lambda i: line.show(
            i.seconds, f"iteration {i.iteration}, {objective} {i.best:.3f} of fair at best"
        ),
    )
    line.end()
    best = folder / "best.safetensors"
    found = {
        "output": str(best),
        "iterations": result.iterations,
        "decisions": result.decisions,
        "seconds": round(result.seconds, 1),
        "ratio_to_fair_on_selection_runs": result.ratio_to_fair,
        "ending": result.ending,
    }
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(
            f"{best}: {objective} {result.ratio_to_fair:.3f} of fair on the selection runs, after {result.iterations} iterations "
            f"({result.decisions:,} decisions, {result.seconds:.0f} s)"
        )
    if result.ending == "interrupted":
        typer.echo("interrupted; the same command with --resume goes on", err=True)
        raise typer.Exit(130)
    if result.ending != "done":
        typer.echo(f"parcae: {result.ending}", err=True)
        raise typer.Exit(1)
