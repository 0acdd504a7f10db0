"""Embeddings of the stages, jobs and clusters of a group of decisions, and their gradients."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.policies.decima.kernels.rows import add_row, clear_rows
from parcae.policies.decima.kernels.training.data import DECISIONS, HEIGHTS, JOBS, ROWS
from parcae.policies.decima.kernels.training.layers import (
    add_gradient,
    outer,
    outer_back,
    transform,
    transform_back,
)
from parcae.products import add_outer, add_rows, multiply


@inlined
def _embed_stages(parts, work):  # type: ignore[no-untyped-def]
    """Compute e_v of all stages (Decima, Eq. 1), from leaves to roots."""
    rows = work.size[ROWS]
    multiply(work.x[:rows], parts.prep_weight, parts.prep_bias, work.e[:rows])
    if not parts.has_graph:
        return
    for height in range(work.size[HEIGHTS]):
        first = work.bound[2 * height]
        last = work.bound[2 * height + 2]
        if height > 0:
            clear_rows(work.total, first, last)
            for row in range(first, last):
                edge = work.first_edge[row]
                while edge >= 0:
                    add_row(work.f_stage.out, work.child[edge], work.total, row)
                    edge = work.next_edge[edge]
            # d_total is free in this pass, and takes what is added to e.
            outer(parts, parts.g_stage, work.total, work.g_stage, work.d_total, first, last)
            for row in range(first, last):
                add_row(work.d_total, row, work.e, row)
        transform(parts.f_stage, work.e, work.f_stage, first, work.bound[2 * height + 1])


@inlined
def embed(parts, work):  # type: ignore[no-untyped-def]
    """Compute the embeddings of stages, jobs and clusters."""
    _embed_stages(parts, work)
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    if not parts.has_graph:
        return
    transform(parts.f_job, work.inputs, work.f_job, 0, rows)
    clear_rows(work.job_total, 0, jobs)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.f_job.out, work.listed[entry], work.job_total, job)
    outer(parts, parts.g_job, work.job_total, work.g_job, work.y, 0, jobs)
    transform(parts.f_global, work.y, work.f_global, 0, jobs)
    decisions = work.size[DECISIONS]
    clear_rows(work.global_total, 0, decisions)
    for member in range(work.first_member[decisions]):
        job = work.member_job[member]
        add_row(work.f_global.out, job, work.global_total, work.member_decision[member])
    outer(parts, parts.g_global, work.global_total, work.g_global, work.z, 0, decisions)


@inlined
def _summaries_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradients of y_i, and add to those of e_v."""
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    decisions = work.size[DECISIONS]
    g_global = work.g_global
    d_total = work.d_global_total
    outer_back(parts, parts.g_global, work, g_global, work.d_z, d_total, 0, decisions)
    clear_rows(work.f_global.d_out, 0, jobs)
    for member in range(work.first_member[decisions]):
        decision = work.member_decision[member]
        add_row(d_total, decision, work.f_global.d_out, work.member_job[member])
    transform_back(parts.f_global, work, work.f_global, work.d_y, 0, jobs)
    outer_back(parts, parts.g_job, work, work.g_job, work.d_y, work.d_job_total, 0, jobs)
    clear_rows(work.f_job.d_out, 0, rows)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.d_job_total, job, work.f_job.d_out, work.listed[entry])
    transform_back(parts.f_job, work, work.f_job, work.d_e, 0, rows)


@inlined
def embed_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the transforms below the heads, from d_e, d_y and d_z."""
    if parts.has_graph:
        _summaries_back(parts, work)
        _stages_back(parts, work)
        _add_gradients(parts, gradient, work)
    rows = work.size[ROWS]
    d_e = work.d_e[:rows]
    add_outer(work.x[:rows], d_e, gradient.prep_weight)
    add_rows(d_e, gradient.prep_bias)


@inlined
def _stages_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradient of e_v of all stages, from roots to leaves."""
    f_stage = work.f_stage
    clear_rows(f_stage.d_out, 0, work.size[ROWS])
    for height in range(work.size[HEIGHTS] - 1, -1, -1):
        first = work.bound[2 * height]
        middle = work.bound[2 * height + 1]
        last = work.bound[2 * height + 2]
        # The rows from `middle` on wait for no stage: no other embedding contains theirs.
        clear_rows(f_stage.d1, middle, last)
        clear_rows(f_stage.d2, middle, last)
        transform_back(parts.f_stage, work, f_stage, work.d_e, first, middle)
        if height == 0:
            continue
        outer_back(parts, parts.g_stage, work, work.g_stage, work.d_e, work.d_total, first, last)
        for row in range(first, last):
            edge = work.first_edge[row]
            while edge >= 0:
                add_row(work.d_total, row, f_stage.d_out, work.child[edge])
                edge = work.next_edge[edge]


@inlined
def _add_gradients(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradients of the transforms that embed."""
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    decisions = work.size[DECISIONS]
    above = work.bound[2]
    add_gradient(gradient.f_stage, work.e, work.f_stage, 0, rows)
    add_gradient(gradient.f_job, work.inputs, work.f_job, 0, rows)
    add_gradient(gradient.f_global, work.y, work.f_global, 0, jobs)
    if parts.has_two_transforms:
        add_gradient(gradient.g_stage, work.total, work.g_stage, above, rows)
        add_gradient(gradient.g_job, work.job_total, work.g_job, 0, jobs)
        add_gradient(gradient.g_global, work.global_total, work.g_global, 0, decisions)
