"""Writes compose/grafana/ttserve.json, the dashboard, from typed objects.

    python tools/dashboard.py            write it anew
    python tools/dashboard.py --check    fail when it is out of date

Grafana's Foundation SDK knows the schema of dashboards, so that what is written
here cannot be anything else.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef

DASHBOARD = Path(__file__).parents[1] / "compose" / "grafana" / "ttserve.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
WINDOW = "[1m]"


@dataclass(frozen=True, slots=True)
class Line:
    """A query and how its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Graph:
    """One panel; `unit` is Grafana's name of it."""

    title: str
    unit: str
    lines: tuple[Line, ...]


def rate(name: str, *by: str) -> str:
    """Per second, summed over everything but some labels."""
    return f"sum by ({', '.join(by)}) (rate({name}{WINDOW}))"


def quantiles(name: str, *by: str) -> tuple[Line, ...]:
    """Median and 99th percentile of a histogram."""
    named = "".join(f"{{{{{label}}}}} " for label in by)
    buckets = rate(f"{name}_bucket", "le", *by)
    return tuple(
        Line(f"histogram_quantile({share}, {buckets})", f"{named}{text}")
        for share, text in ((0.5, "p50"), (0.99, "p99"))
    )


FRONTENDS = (
    Graph(
        "Requests",
        "short",
        (
            Line("sum(vllm:num_requests_running)", "running"),
            Line("sum(vllm:num_requests_waiting)", "waiting"),
        ),
    ),
    Graph(
        "Tokens",
        "short",
        (
            Line(rate("vllm:prompt_tokens_total"), "prompt tokens/s"),
            Line(rate("vllm:generation_tokens_total"), "generated tokens/s"),
        ),
    ),
    Graph("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    Graph("Time between tokens", "s", quantiles("vllm:inter_token_latency_seconds")),
    Graph("Time of a request", "s", quantiles("vllm:e2e_request_latency_seconds")),
    Graph(
        "Failures",
        "short",
        (Line(rate("ttserve_request_failures_total", "reason"), "{{reason}}"),),
    ),
    Graph(
        "Ready",
        "short",
        (
            Line("sum(ttserve_ready)", "frontends"),
            Line("sum(ttserve_serving)", "device services"),
        ),
    ),
    Graph(
        "Lateness",
        "s",
        (
            Line("max(ttserve_event_loop_lag_seconds)", "event loop"),
            Line("max(ttserve_heartbeat_seconds)", "heartbeat"),
        ),
    ),
)

STEPS = (
    Graph(
        "Step, on the mesh", "s", quantiles("ttserve_step_duration_seconds", "phase")
    ),
    Graph("Step, on the host", "s", quantiles("ttserve_step_host_seconds", "phase")),
    Graph(
        "Step, readback and sampling",
        "s",
        quantiles("ttserve_step_readback_seconds", "phase"),
    ),
    Graph(
        "Mesh idle before a step", "s", quantiles("ttserve_host_gap_seconds", "phase")
    ),
    Graph(
        "Steps",
        "short",
        (
            Line(rate("ttserve_step_rows_count", "phase"), "{{phase}} steps/s"),
            Line(rate("ttserve_failed_steps_total"), "failed steps/s"),
        ),
    ),
    Graph(
        "Rows of a step",
        "short",
        (
            Line(
                f"{rate('ttserve_step_rows_sum', 'phase')} / "
                f"{rate('ttserve_step_rows_count', 'phase')}",
                "{{phase}}",
            ),
        ),
    ),
    Graph(
        "Where tokens are sampled, and why",
        "short",
        (
            Line(
                rate("ttserve_sampling_site_total", "site", "reason"),
                "{{site}}: {{reason}}",
            ),
        ),
    ),
    Graph(
        "Overlap, and why",
        "short",
        (
            Line(
                rate("ttserve_overlap_total", "verdict", "reason"),
                "{{verdict}}: {{reason}}",
            ),
        ),
    ),
)

RESOURCES = (
    Graph(
        "Rows in use",
        "short",
        (
            Line("sum by (lane) (ttserve_lane_rows)", "lane {{lane}}"),
            Line("sum(ttserve_lane_rows_limit)", "all there are"),
        ),
    ),
    Graph(
        "Waiting, and for what",
        "short",
        (Line("sum by (reason) (ttserve_requests_waiting)", "{{reason}}"),),
    ),
    Graph(
        "KV blocks",
        "short",
        (Line("sum by (lane, state) (ttserve_kv_blocks)", "lane {{lane}} {{state}}"),),
    ),
    Graph(
        "Prompt tokens from the prefix cache",
        "percentunit",
        (
            Line(
                f"{rate('ttserve_prefix_cache_hits_total')} / "
                f"{rate('ttserve_prefix_cache_queries_total')}",
                "hits",
            ),
        ),
    ),
    Graph(
        "Ends, refusals, preemptions",
        "short",
        (
            Line(rate("ttserve_requests_finished_total", "reason"), "{{reason}}"),
            Line(
                rate("ttserve_requests_refused_total", "reason"), "refused: {{reason}}"
            ),
            Line(rate("ttserve_preemptions_total"), "preempted"),
        ),
    ),
    Graph(
        "Sessions",
        "short",
        (
            Line("sum(ttserve_sessions)", "frontends attached"),
            Line(rate("ttserve_outbox_merges_total"), "merged steps/s"),
        ),
    ),
    Graph(
        "Since the engine's last loop",
        "s",
        (Line("max(ttserve_engine_loop_age_seconds)", "device service"),),
    ),
    Graph(
        "Memory",
        "bytes",
        (Line("process_resident_memory_bytes", "{{job}} {{instance}}"),),
    ),
)

ROWS = {"Frontends": FRONTENDS, "Steps": STEPS, "Rows, blocks, queues": RESOURCES}


def render() -> str:
    """The dashboard as JSON."""
    built = (
        dashboard.Dashboard("ttserve")
        .uid("ttserve")
        .tags(["ttserve"])
        .refresh("5s")
        .time("now-30m", "now")
        .timezone("browser")
        .editable()
    )
    ids = itertools.count(1)
    for title, graphs in ROWS.items():
        built = built.with_row(dashboard.Row(title).id(next(ids)))
        for graph in graphs:
            built = built.with_panel(_panel(graph).id(next(ids)))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def expressions() -> Sequence[str]:
    """Every query of the dashboard."""
    return [
        line.expression
        for graphs in ROWS.values()
        for graph in graphs
        for line in graph.lines
    ]


def _panel(graph: Graph) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .unit(graph.unit)
        .min(0)
        .datasource(SOURCE)
        .line_width(1)
        .fill_opacity(10)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .height(7)
        .span(6)
    )
    for number, line in enumerate(graph.lines):
        query = prometheus.Dataquery().expr(line.expression).legend_format(line.legend)
        panel = panel.with_target(query.ref_id(chr(ord("A") + number)))
    return panel


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = render()
    if not check:
        DASHBOARD.write_text(text)
    elif DASHBOARD.read_text() != text:
        sys.exit(f"{DASHBOARD.name} is out of date: run python tools/dashboard.py")


if __name__ == "__main__":
    main()
