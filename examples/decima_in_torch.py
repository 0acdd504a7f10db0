"""Decima's graph network as a plain PyTorch module, for `parcae train --network`.

    parcae train tpch --world executors --network decima_in_torch:Decima --jobs 20 -o decima
    parcae compare tpch --world executors --policies fair,decima,decima/best.safetensors --jobs 20

Source: Mao et al., "Learning Scheduling Algorithms for Data Processing Clusters" (2019), section 5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parcae.environments.layout import ClusterFeature, ObservedJobFeature, StageFeature
from parcae.environments.own_network import NetworkInput


def layers(size: int, *widths: int) -> nn.Sequential:
    """Linear layers, each but the last followed by a leaky rectifier."""
    made: list[nn.Module] = []
    for width in widths:
        made += [nn.Linear(size, width), nn.LeakyReLU(0.2)]
        size = width
    return nn.Sequential(*made[:-1])


class Decima(nn.Module):
    """Embeds stages, jobs and the cluster; scores stages that can run, and limits for them.

    Args:
        width: of all embeddings.
        rounds: messages travel so many edges, from a child to its parents.
    """

    def __init__(self, width: int = 16, rounds: int = 8) -> None:
        super().__init__()
        self.width, self.rounds = width, rounds
        self.prepare = layers(len(StageFeature) + len(ObservedJobFeature), 32, width)
        self.message = layers(width, 32, width)
        self.receive = layers(width, 32, width)
        self.of_stage = layers(2 * width, 32, width)
        self.job = layers(width, 32, width)
        self.of_job = layers(width, 32, width)
        self.all = layers(width, 32, width)
        size = 3 * width + len(ClusterFeature)
        self.score = layers(size, 32, 16, 1)
        self.limit = nn.Linear(size, 32)
        self.level = nn.Linear(1, 32, bias=False)
        self.of_limit = nn.Linear(32, 1)

    def sums(self, rows: Tensor, owner: Tensor, size: int) -> Tensor:
        """The sums of the rows of each owner, [size, width]."""
        return rows.new_zeros(size, self.width).index_add(0, owner, rows)

    def forward(self, seen: NetworkInput) -> tuple[Tensor, Tensor]:
        """Scores of stages, [B, S], and of limits, [B, S, L]."""
        (count, num_stages), num_jobs = seen.stage_mask.shape, seen.job_mask.shape[1]
        # The stages of all moments lie one after another.
        owner, row = torch.nonzero(seen.stages[:, :, StageFeature.IS_SHOWN], as_tuple=True)
        place = torch.zeros(count, num_stages, dtype=torch.int64)
        place[owner, row] = torch.arange(len(owner))
        job = owner * num_jobs + seen.stage_job[owner, row]
        features = [seen.stages[owner, row], seen.jobs.flatten(0, 1)[job]]
        x = self.prepare(torch.cat(features, 1))
        moment, edge = torch.nonzero(seen.edges[:, :, 0] >= 0, as_tuple=True)
        parent, child = place[moment[:, None], seen.edges[moment, edge]].unbind(1)
        has_child = torch.zeros(len(x), 1).index_fill(0, parent, 1.0)
        stage = x
        for _ in range(self.rounds):
            heard = self.sums(self.message(stage)[child], parent, len(x))
            stage = x + self.receive(heard) * has_child
        of_job = self.sums(self.of_stage(torch.cat([x, stage], 1)), job, count * num_jobs)
        jobs = self.job(of_job)
        is_shown = seen.jobs[:, :, [ObservedJobFeature.IS_SHOWN]]
        everything = self.all((self.of_job(jobs).view(count, num_jobs, -1) * is_shown).sum(1))

        can_run = seen.stage_mask[owner, row]
        owner, row, job = owner[can_run], row[can_run], job[can_run]
        around = [jobs[job], everything[owner], seen.cluster[owner]]
        known = torch.cat([stage[can_run], *around], 1)
        scores = torch.zeros(count, num_stages)
        scores[owner, row] = self.score(known).squeeze(1)
        levels = torch.linspace(0, 1, seen.limit_mask.shape[1])[:, None]
        hidden = torch.relu(self.limit(known)[:, None] + self.level(levels))
        limits = torch.zeros(count, num_stages, len(levels))
        limits[owner, row] = self.of_limit(hidden).squeeze(2)
        return scores, limits
