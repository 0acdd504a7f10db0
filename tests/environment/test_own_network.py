"""A plain PyTorch module is trained, saved, named as a policy and compared."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import parcae
from parcae.base.errors import ConfigError, FormatError, ParcaeError, PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.environments.cluster import ClusterEpisodes
from parcae.environments.layout import ObservedJobFeature, StageFeature
from parcae.environments.own_network import Chooser, NetworkInput, NetworkPolicy, network_input
from parcae.environments.settings import read_cluster
from parcae.policies.checkpoint import BEST_FILE, read_checkpoint, write_checkpoint
from parcae.policies.networks.training import Surrogate
from parcae.service.serve import demonstrate, simulated_client
from parcae.workloads.workload import SELECTION_SEED_START, Workload
from tests.cli.running import run
from tests.cli.test_documents import NETWORK
from tests.conftest import job
from tests.service.running import stopped_when

_SMALL = {"num_groups": 2, "group_size": 2, "num_selection": 4, "select_every": 1}


class OfQueries(nn.Module):
    """A linear score of every query."""

    def __init__(self, width: int = len(ObservedJobFeature)) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, seen: NetworkInput) -> Any:
        return self.score(seen.jobs).squeeze(2)


class OfStages(nn.Module):
    """A linear score of every stage, and of every limit for it."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(len(StageFeature), 1)
        self.slope = nn.Parameter(torch.full((), 0.1))

    def forward(self, seen: NetworkInput) -> Any:
        scores = self.score(seen.stages).squeeze(2)
        levels = torch.arange(seen.limit_mask.shape[1])
        return scores, self.slope * levels.expand(*scores.shape, -1)


class Wrong(OfQueries):
    """Adds a number to the shape of its scores, which are NaN without one."""

    extra = 0

    def forward(self, seen: NetworkInput) -> Any:
        scores: Tensor = super().forward(seen)
        return torch.cat([scores, scores[:, :1]], 1) if self.extra else scores / 0 - scores / 0


class Longer(Wrong):
    extra = 1


class Failing(OfQueries):
    def forward(self, seen: NetworkInput) -> Any:
        return seen.queries  # type: ignore[attr-defined]


class WrongLimits(OfQueries):
    def forward(self, seen: NetworkInput) -> Any:
        scores: Tensor = super().forward(seen)
        return scores, scores


class NoScores(OfQueries):
    def forward(self, seen: NetworkInput) -> Any:
        return None


class NoWeights(nn.Module):
    def forward(self, seen: NetworkInput) -> Any:
        return seen.jobs.sum(2)


class WithArguments(OfQueries):
    def __init__(self, size: int) -> None:
        super().__init__(size)


NUMBER = 3


def _sized(*seconds: int) -> Workload:
    """Queries of one stage of four tasks each, which take so many seconds."""
    return Workload("sized", tuple(job(f"{s}s", (4, 1_000 * s, ())) for s in seconds))


@pytest.fixture
def cluster() -> parcae.Cluster:
    return parcae.Cluster(cores=4)


@pytest.fixture
def jobs(cluster: parcae.Cluster) -> parcae.JobSequence:
    return parcae.workload("toy").draw(5, "batch", cluster, seed=1)


@pytest.mark.parametrize("network", [OfQueries, OfStages])
@pytest.mark.parametrize("size", [{"cores": 4}, {"executors": 4, "moving_delay_ms": 100}])
def test_a_trained_network_is_a_policy_that_decides_as_it_was_measured(
    network: type[nn.Module], size: dict[str, int], tmp_path: Path
) -> None:
    cluster = parcae.Cluster(**size)
    jobs = parcae.workload("toy").draw(5, "load:0.8", cluster, seed=1)
    result = parcae.train(network(), jobs, cluster, tmp_path, iterations=2, settings=_SMALL)
    assert (result.iterations, result.ending) == (2, "done")
    path = tmp_path / BEST_FILE
    name = f"tests.environment.test_own_network:{network.__name__}"
    assert read_checkpoint(path).settings["module"] == name

    def average_s(policy: str | Path) -> float:
        seeds = range(SELECTION_SEED_START, SELECTION_SEED_START + 4)
        draws = [(jobs.workload.draw(5, "load:0.8", cluster, seed=seed), seed) for seed in seeds]
        return sum(parcae.simulate(d, policy, cluster, seed=s).average_jct_s for d, s in draws)

    assert average_s(path) / average_s("fair") == pytest.approx(result.best)


def test_choices_have_the_probabilities_with_which_they_were_drawn() -> None:
    torch.manual_seed(2)
    episodes = ClusterEpisodes(64, read_cluster({"workload": "toy", "num_jobs": 4, "executors": 4}))
    rows = np.arange(64)
    episodes.start(rows, [7] * 64)
    seen = network_input(episodes.observations(), rows)
    for network in (OfQueries(), OfStages()):
        chooser = Chooser(network, "mine", ConfigError)
        drawn, actions = chooser.choose(seen, torch.Generator().manual_seed(1))
        _, judged = chooser.judge(drawn, Surrogate(np.ones(64, np.float32)))
        assert judged.log_prob.tolist() == pytest.approx(drawn.log_prob.tolist(), abs=1e-6)
        assert seen.stage_mask[torch.arange(64), torch.from_numpy(actions[:, 0])].all()
        assert len({tuple(action) for action in actions.tolist()}) > 1
        (most_probable,) = {tuple(one) for one in chooser.choose(seen, None)[1].tolist()}
        probability = np.exp(drawn.log_prob)
        best = actions.tolist()[int(probability.argmax())]
        assert best == list(most_probable)


def test_a_network_learns_to_serve_short_queries_first(
    cluster: parcae.Cluster, tmp_path: Path
) -> None:
    jobs = _sized(1, 2, 30, 60).draw(6, "batch", cluster, seed=1)
    settings = {**_SMALL, "group_size": 8, "learning_rate": 0.1, "select_every": 5}
    result = parcae.train(OfQueries, jobs, cluster, tmp_path, iterations=15, settings=settings)
    frame = parcae.compare(jobs, ["srpt", tmp_path / BEST_FILE], cluster, seeds=5).to_frame()
    assert frame["ratio_to_first"][1] < 1.02
    assert result.best < 0.8


def test_a_training_that_was_resumed_ends_with_the_same_weights(
    cluster: parcae.Cluster, jobs: parcae.JobSequence, tmp_path: Path
) -> None:
    def trained(folder: str, iterations: int, resume: bool = False) -> dict[str, list[float]]:
        place = tmp_path / folder
        parcae.train(
            OfQueries, jobs, cluster, place, iterations=iterations, settings=_SMALL, resume=resume
        )
        weights = read_checkpoint(place / "training.safetensors").weights
        return {name: array.tolist() for name, array in weights.items()}

    trained("parts", 1)
    assert trained("parts", 2, resume=True) == trained("whole", 2)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Wrong(), r"test_own_network:Wrong: a score is NaN or infinite"),
        (Longer(), r"Longer: its scores are of shape \[1, 6\]; return one .*\[1, 5\], or .*\[1, "),
        (NoScores(), r"NoScores: its scores are <class 'NoneType'>; return"),
        (WrongLimits(), r"its scores of limits are of shape \[1, 5\]; return \[1, 5, 4\]"),
        (Failing(), r"Failing: its forward fails with AttributeError: 'NetworkInput' object"),
        (NoWeights(), r"NoWeights: it has no weights to train"),
        (WithArguments, r"made without arguments \(TypeError: .*'size'\); give its arguments def"),
        (WithArguments(6), r"made without arguments"),
        (OfQueries(5), r"test_own_network:OfQueries: weights 'score.weight' are not those"),
        (f"{__name__}:NUMBER", r"test_own_network:NUMBER is 3: give a torch.nn.Module"),
        (f"{__name__}:Nothing", r"there is no 'Nothing' in .*test_own_network.py"),
        ("no_such_module:Net", r"there is no module 'no_such_module'"),
        (type("Local", (OfQueries,), {"__qualname__": "f.<locals>.Local"}), r"top of a module"),
        (3, r"network 3 is 3: give a torch.nn.Module"),
    ],
    ids=repr,
)
def test_what_is_no_network_is_refused_before_the_training(
    network: Any, message: str, cluster: parcae.Cluster, jobs: parcae.JobSequence, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, FormatError), match=message):
        parcae.train(network, jobs, cluster, tmp_path / "t", iterations=1, settings=_SMALL)


def test_what_a_network_of_ones_own_cannot_do_is_refused(
    cluster: parcae.Cluster, jobs: parcae.JobSequence, tmp_path: Path
) -> None:
    def refused(message: str, size: parcae.Cluster = cluster, **given: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            parcae.train(OfQueries, jobs, size, tmp_path, iterations=1, **given)

    refused("learns from a cost that accrues; choose one of average-jct", objective="p95-jct")
    refused(r"setting 'windows_s' is none .*did you mean|known", settings={"windows_s": 3})
    refused("chooses none", parcae.Cluster(executors=4, executor_classes="decima"))


def test_a_checkpoint_of_another_network_is_refused(
    cluster: parcae.Cluster, jobs: parcae.JobSequence, tmp_path: Path
) -> None:
    parcae.train(OfQueries, jobs, cluster, tmp_path, iterations=1, settings=_SMALL)
    path = tmp_path / BEST_FILE
    saved = read_checkpoint(path)

    def refused(kind: type[ParcaeError], message: str, network: str) -> None:
        settings = {**saved.settings, "module": f"{__name__}:{network}"}
        other = type(saved)(saved.kind, saved.feature_version, saved.weights, settings)
        write_checkpoint(other, path)
        with pytest.raises(kind, match=message):
            parcae.simulate(jobs, path, cluster)

    refused(FormatError, "weights 'slope' are not those of the network", "OfStages")
    refused(ConfigError, "there is no 'Gone' in", "Gone")
    refused(PolicyError, r"best.safetensors \(tests.*:Wrong\): a score is NaN", "Wrong")


def test_a_module_of_the_folder_is_trained_and_compared_at_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(NETWORK)
    small = " ".join(f"--set {key}={value}" for key, value in _SMALL.items())
    train = f"parcae train toy --cores 4 --jobs 4 --network my_network:Net --iterations 1 {small}"
    done = run(f"{train} -o t", tmp_path)
    assert done.returncode == 0, done.stderr
    compare = "parcae compare toy --cores 4 --jobs 4 --seeds 2 --processes 1 --policies"
    done = run(f"{compare} fair,t/best.safetensors", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "t/best.safetensors" in done.stdout
    done = run(f"{train} -o u --start t/best.safetensors --device cuda", tmp_path)
    assert "--device has no effect with --network my_network:Net" in done.stderr
    assert run(f"{train} -o u --start t/best.safetensors", tmp_path).returncode == 0


def test_a_service_plans_by_the_checkpoint(
    cluster: parcae.Cluster,
    jobs: parcae.JobSequence,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parcae.train(OfQueries, jobs, cluster, tmp_path, iterations=1, settings=_SMALL)
    players: list[threading.Thread] = []
    stages: list[int] = []

    def begin(port: int, admin_port: int | None) -> None:
        client = simulated_client(jobs.workload, 3, 4)
        players.append(demonstrate(port, [client], times_faster=1000.0))

    def decide(self: NetworkPolicy, observation: Observation) -> Decision:
        decision = decide_alone(self, observation)
        stages.append(decision.stage)
        return decision

    decide_alone = NetworkPolicy.decide
    monkeypatch.setattr(NetworkPolicy, "decide", decide)
    with stopped_when(lambda: players and not players[0].is_alive()):
        parcae.serve(
            tmp_path / BEST_FILE,
            jobs.workload,
            cluster,
            on_ready=begin,
            port=0,
            admin_port=None,
            for_s=60,
        )
    assert len(set(stages)) > 2
