"""Recorded decisions judged again, and the gradient of their loss.

Some decisions at a time form a group, whose numbers stay in the processor's caches. Between
successive decisions of a run most jobs do not change, and of a job that does few stages, so every
state of a job and every distinct stage is embedded once for the whole group. The stages are ordered
by height above the leaves, so that every transform is a product of matrices. The pass back computes
the group's forward pass again instead of storing it.
"""

from __future__ import annotations

import math

from parcae.kernels import inlined, kernel
from parcae.policies.decima.kernels.training.embeddings import embed, embed_back
from parcae.policies.decima.kernels.training.groups import load
from parcae.policies.decima.kernels.training.heads import heads_back, judge_heads
from parcae.policies.decima.kernels.training.layers import copy


@inlined
def _judge_group(data, edges, parts, work, index, results, first):  # type: ignore[no-untyped-def]
    """Judge the decisions of a group, which begins with index[first]. Returns where it ends."""
    last = load(data, edges, work, index, first)
    group = index[first:last]
    log_prob = results.log_prob[first:last]
    embed(parts, work)
    judge_heads(data, parts, work, group, log_prob, results.entropy[first:last])
    copy(work.z, results.z[first:last], 0, last - first)
    return last


@inlined
def _write_slopes(loss, results, first, last):  # type: ignore[no-untyped-def]
    """Write the gradient of the loss of the decisions first .. last - 1."""
    for at in range(first, last):
        slope = -loss.weight[at]
        log_prob = results.log_prob[at]
        if loss.has_ratio:
            ratio = math.exp(log_prob - loss.old_log_prob[at])
            # A decision that became more (or less) likely than the clip allows counts no more.
            is_over = ratio > 1.0 + loss.clip and slope < 0.0
            is_under = ratio < 1.0 - loss.clip and slope > 0.0
            slope = 0.0 if is_over or is_under else slope * ratio
        elif log_prob < loss.least:
            slope = 0.0
        results.d_log_prob[at] = slope
        results.d_entropy[at] = -loss.entropy


@kernel
def judge(data, edges, parts, work, index, results):  # type: ignore[no-untyped-def]
    """Evaluate recorded decisions.

    Args:
        data: the Decisions.
        edges: the Edges of the workload.
        parts: the Parts of the network.
        work: the Passes, written.
        index: int64[B], which decisions.
        results: the Results, written, except for the slopes.
    """
    first = 0
    while first < index.shape[0]:
        first = _judge_group(data, edges, parts, work, index, results, first)


@kernel
def summarize(data, edges, parts, work, index, z):  # type: ignore[no-untyped-def]
    """Write the summaries of the cluster in recorded states to z; see `judge`."""
    first = 0
    while first < index.shape[0]:
        last = load(data, edges, work, index, first)
        embed(parts, work)
        copy(work.z, z[first:last], 0, last - first)
        first = last


@kernel
def differentiate(  # type: ignore[no-untyped-def]
    data, edges, parts, gradient, work, index, loss, results
):
    """Evaluate recorded decisions, and add the gradient of their loss to `gradient`.

    Args:
        data: the Decisions.
        edges: the Edges of the workload.
        parts: the Parts of the network.
        gradient: Parts, changed.
        work: the Passes, written.
        index: int64[B], which decisions.
        loss: the Loss. If slopes are given, they are those in `results`.
        results: the Results, written.
    """
    first = 0
    while first < index.shape[0]:
        last = _judge_group(data, edges, parts, work, index, results, first)
        if not loss.is_given:
            _write_slopes(loss, results, first, last)
        d_log_prob = results.d_log_prob[first:last]
        heads_back(data, parts, gradient, work, d_log_prob, results.d_entropy[first:last])
        embed_back(parts, gradient, work)
        first = last
