from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.decima.checkpoints import rule_checkpoint, variant_as_in_paper
from parcae.decima.graph.layout import DecimaSettings, decima_levels, initial_weights
from parcae.decima.rule import start_parameters
from parcae.policies.additions import named_policy
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.learned import SHIPPED, find_checkpoint, is_learned, setting_card, variant_name
from parcae.policies.names import PolicyName
from parcae.policies.registry import PolicySetting, bind, note_once
from parcae.simulation.config import SimulationConfig, WorldName, decima_classes
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.conftest import job, made_up

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(num_executors=10)
_NAMES = ("corrector", "decima", "tuned")


def _chosen(name: str, *setting: Any) -> str:
    """NAME:VARIANT for (workload, config, arrivals)."""
    return variant_name(PolicyName(name), PolicySetting(*setting))


def _found(name: str, *setting: Any) -> Checkpoint:
    return find_checkpoint(PolicyName(name), PolicySetting(*setting))


@pytest.mark.parametrize(
    "name", [f"{name}:{variant}" for name in SHIPPED.names for variant in SHIPPED.variants(name)]
)
def test_every_shipped_policy_schedules_a_foreign_workload_to_its_end(name: str) -> None:
    is_planned = name.endswith(":cores")
    config = _CONFIG.model_copy(update={"world": WorldName.CORES}) if is_planned else _CONFIG
    policy = named_policy(name, _WORKLOAD, config)
    sequence = draw_sequence(_WORKLOAD, "load:0.7", 12, 10, RandomStreams(1))
    assert (simulate(sequence, policy, config, 1).completion_ms > 0).all()


def test_a_name_becomes_the_variant_of_the_world() -> None:
    cores = _CONFIG.model_copy(update={"world": WorldName.CORES})
    assert _chosen("tuned", _WORKLOAD, cores, "load:0.7") == "tuned:cores"
    assert _chosen("parcae", _WORKLOAD, cores, "load:0.7") == "parcae:cores"
    assert _chosen("tuned", _WORKLOAD, _CONFIG, "load:0.7") != "tuned:cores"
    with pytest.raises(PolicyError, match="choose --world cores"):
        named_policy("tuned:cores", _WORKLOAD, _CONFIG)


def test_the_former_name_of_the_corrector_is_read_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_once.cache_clear()
    assert _chosen("parcae", _WORKLOAD, _CONFIG) == _chosen("corrector", _WORKLOAD, _CONFIG)
    assert "'parcae' of the world of executors is called 'corrector' now" in caplog.text
    caplog.clear()
    note_once.cache_clear()
    cores = _CONFIG.model_copy(update={"world": WorldName.CORES})
    old = replace(read_checkpoint(SHIPPED.path("corrector", "batch")), kind="parcae")
    write_checkpoint(old, tmp_path / "old.safetensors")
    for name in ("parcae:batch", str(tmp_path / "old.safetensors")):
        assert hasattr(named_policy(name, _WORKLOAD, cores), "decide")
    assert caplog.text.count("is called 'corrector' now") == 1


def test_a_colon_without_a_variant_is_refused_with_the_variants() -> None:
    for name in _NAMES:
        with pytest.raises(
            PolicyError, match=f"'{name}:' names no variant .*{SHIPPED.variants(name)[0]}"
        ):
            named_policy(f"{name}:", _WORKLOAD, _CONFIG)


@pytest.mark.parametrize(
    "path", sorted(SHIPPED.folder.glob("*.safetensors")), ids=lambda path: path.name
)
def test_every_shipped_policy_has_a_model_card(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    assert {
        "workload",
        "fingerprint",
        "arrivals",
        "jobs",
        "executors",
        "cluster",
        "command",
        "parcae",
    } <= set(checkpoint.card)
    assert path.stat().st_size < 100_000


def test_a_plain_name_chooses_the_features_of_jobs_and_studies_those_of_the_paper() -> None:
    config = SimulationConfig()
    for arrivals, variant in (("batch", "batch"), ("poisson:25s", "stream")):
        assert _chosen("decima", _tpch_decima(), config, arrivals) == f"decima:{variant}"
        as_in_paper = variant_as_in_paper(
            PolicyName("decima"), PolicySetting(_tpch_decima(), config, arrivals)
        )
        assert as_in_paper == f"decima:paper-{variant}"
        for name, features in ((variant, "jobs"), (f"paper-{variant}", "paper")):
            assert read_checkpoint(SHIPPED.path("decima", name)).settings["features"] == features
    setting = PolicySetting(_tpch_decima(), config)
    assert variant_as_in_paper(PolicyName("corrector"), setting) == "corrector:batch"
    # Networks that choose executor classes have the paper's features.
    classes = SimulationConfig(num_executors=200, executor_classes=decima_classes(200))
    assert _chosen("decima", _tpch_decima(), classes, "load:0.7") == "decima:classes"


def _tpch_decima() -> Workload:
    """A workload that is as far from the shipped variants as the one they were made on."""
    card = read_checkpoint(SHIPPED.path("decima", "batch")).card
    mean_ms = card["cluster"]["moving_delay_ms"] / card["delay_of_work"]
    return Workload(card["workload"], (job("one", (10, round(mean_ms / 10), ())),))


def test_the_nearest_variant_is_chosen_by_arrivals_then_load_and_delays() -> None:
    def arrivals_of(arrivals: str) -> object:
        quick = _CONFIG.model_copy(
            update={"moving_delay_ms": round(0.002 * _WORKLOAD.mean_work_ms)}
        )
        return _found("tuned", _WORKLOAD, quick, arrivals).card["arrivals"]

    assert arrivals_of("batch") == "batch"
    assert arrivals_of("load:0.5") == "poisson:25s"
    assert arrivals_of("load:0.95") == "poisson:18s"


def test_the_bundled_workload_gets_the_variant_made_for_it_under_any_model_of_parallelism() -> None:
    plain = load_workload("tpch")
    for workload in (plain, with_parallelism_model(plain, "decima-cluster")):
        for name in _NAMES:
            assert (
                _found(name, workload, SimulationConfig(), "batch").card["workload"] == plain.name
            )
    assert _found("corrector", plain, SimulationConfig(), "load:0.7").card["arrivals"] == "load:0.7"


def test_decima_far_from_all_variants_takes_the_nearest() -> None:
    def chosen(workload: Workload, num_executors: int, arrivals: str = "batch") -> str:
        config = SimulationConfig(num_executors=num_executors)
        return _chosen("decima", workload, config, arrivals)

    bundled = load_workload("tpch")
    synthetic = load_workload("synthetic")
    assert chosen(synthetic, 50) == "decima:batch"
    assert chosen(synthetic, 50, "load:0.6") == "decima:stream"
    assert chosen(bundled, 10) == "decima:bundled-batch-50"
    assert chosen(bundled, 50) == "decima:bundled-batch-50"
    assert chosen(bundled, 50, "load:0.7") == "decima:bundled-stream-50"


@pytest.mark.parametrize("model", ["none", "decima-cluster"])
def test_delays_decide_before_the_model_of_parallelism(model: str) -> None:
    """A network for moves of 2 s had 0.885 of fair where the one for 0.2 s had 0.735."""
    workload = with_parallelism_model(load_workload("tpch"), model)
    quick = SimulationConfig(num_executors=20, moving_delay_ms=200, warmup_delay_ms=100)
    for config, size in ((quick, ""), (SimulationConfig(num_executors=50), "-50")):
        for arrivals, kind in (("batch", "batch"), ("load:0.7", "stream")):
            name = _chosen("decima", workload, config, arrivals)
            assert name == f"decima:bundled-{kind}{size}"


def test_names_and_paths_are_distinguished_from_heuristics() -> None:
    assert is_learned(PolicyName("tuned:batch"))
    assert is_learned(PolicyName("x/y.safetensors"))
    assert not is_learned(PolicyName("weighted-fair:tuned"))
    with pytest.raises(PolicyError, match="no such variant; shipped are"):
        named_policy("tuned:nothing", _WORKLOAD, _CONFIG)
    with pytest.raises(PolicyError, match="is not a learned policy"):
        _found("fair", _WORKLOAD, _CONFIG, "batch")


def test_a_checkpoint_is_bound_by_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    write_checkpoint(
        rule_checkpoint(start_parameters(), setting_card(_WORKLOAD, _CONFIG, "batch", 5)), path
    )
    assert named_policy(str(path), _WORKLOAD, _CONFIG).name == str(path)
    write_checkpoint(Checkpoint("parcae", 1, {}), path)
    with pytest.raises(FormatError, match="without a rule's parameters"):
        named_policy(str(path), _WORKLOAD, _CONFIG)
    write_checkpoint(Checkpoint("parcae", 1, {"rule": start_parameters()}), path)
    with pytest.raises(FormatError, match="should have shape"):
        named_policy(str(path), _WORKLOAD, _CONFIG)


def test_decima_with_an_output_per_limit_is_refused_on_another_cluster(tmp_path: Path) -> None:
    settings = DecimaSettings.model_validate({"limits": "outputs"})
    levels = len(decima_levels(10, DecimaSettings()))
    weights = initial_weights(np.random.default_rng(0), settings, levels)
    shape = {**settings.model_dump(mode="json"), "num_levels": levels}
    path = tmp_path / "decima.safetensors"
    write_checkpoint(Checkpoint("decima", 1, dict(weights), shape), path)
    named_policy(str(path), _WORKLOAD, _CONFIG)
    with pytest.raises(FormatError, match="use a network with limits as an input"):
        named_policy(str(path), _WORKLOAD, SimulationConfig(num_executors=20))


def test_decima_with_idle_slots_is_refused_in_the_world_of_cores() -> None:
    settings = DecimaSettings(idle_lengths=4)
    weights = initial_weights(np.random.default_rng(0), settings, 10)
    checkpoint = Checkpoint("decima", 1, dict(weights), settings.model_dump(mode="json"))
    assert bind(checkpoint, "idle", PolicySetting(_WORKLOAD, _CONFIG)).name == "idle"
    cores = _CONFIG.model_copy(update={"world": WorldName.CORES})
    with pytest.raises(ConfigError, match=r"idle: .* the world of cores has no idle slots"):
        bind(checkpoint, "idle", PolicySetting(_WORKLOAD, cores))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 3}, "depth: Extra inputs are not permitted"),
        ({"features": "jobs", "most_jobs": 10**30}, "most_jobs: Input should be less than"),
        ({"features": "jobs", "has_graph": False}, "Value error, features=jobs needs a graph"),
    ],
)
def test_settings_that_decimas_network_cannot_have_are_refused_in_one_line(
    settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "decima.safetensors"
    write_checkpoint(Checkpoint("decima", 1, {}, settings), path)
    with pytest.raises(FormatError, match="settings do not fit Decima's network") as refusal:
        named_policy(str(path), _WORKLOAD, _CONFIG)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
