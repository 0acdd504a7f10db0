"""The formats of the workloads that Decima was measured on, for `parcae workload import`."""

from __future__ import annotations

from parcae.workloads.readers import BAD_SHARE, Reader, ReaderOption

READERS = (
    Reader(
        "tpch-profiles",
        "Import TPC-H profiles of Decima's authors (no pickle is executed) or of ERDOS.",
        "The npy folder of Decima's authors, its zip, the same as JSON, or profiles of ERDOS.",
        "tpch_profiles.json.gz -o tpch-decima.parcae",
        "parcae.decima.tpch:read_tpch_profiles",
        "tpch-decima",
    ),
    Reader(
        "alibaba",
        "Import the batch tasks of Alibaba's cluster-trace-v2018.",
        "batch_task.csv as published, or JSON lines; also as .gz.",
        "batch_task.csv -o alibaba.parcae",
        "parcae.decima.alibaba:read_alibaba",
        "alibaba-2018",
        options=(
            ReaderOption(
                "duration",
                str,
                "auto",
                "How long an instance of a task takes. span: end - start of the task, with the "
                "time that instances waited; mean: the mean of its instances (--instances, or "
                "JSON lines with duration_s); auto: the mean where there is one, else the span.",
            ),
            ReaderOption(
                "instances",
                str,
                None,
                "The trace's batch_instance.csv, for the mean durations; read as a stream.",
                is_file=True,
            ),
            BAD_SHARE,
        ),
    ),
)
