"""The dashboard is a dashboard, by the types of Grafana's Foundation SDK."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "compose" / "grafana"


def dashboard() -> dict[str, Any]:
    found = json.loads((GRAFANA / "ttserve.json").read_text())
    assert isinstance(found, dict)
    return found


def test_nothing_in_it_is_unknown_to_the_schema() -> None:
    """What the types do not know would be lost on the way through them."""
    register_default_plugins()
    plain = dashboard()
    read = Dashboard.from_json(plain)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == plain


def test_it_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "dashboard.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0


def test_every_query_is_promql_and_every_panel_has_a_place_of_its_own() -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    for panel in panels:
        assert panel["targets"]
        for target in panel["targets"]:
            promql_parser.parse(target["expr"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_grafana_is_told_of_the_prometheus_that_the_panels_ask() -> None:
    source = yaml.safe_load((GRAFANA / "datasource.yaml").read_text())["datasources"][0]
    asked = {p["datasource"]["uid"] for p in dashboard()["panels"] if "datasource" in p}
    assert asked == {source["uid"]}
    compose = yaml.safe_load((ROOT / "compose" / "docker-compose.yaml").read_text())
    host = re.fullmatch(r"http://([a-z]+):9090", source["url"])
    assert host is not None
    assert host[1] in compose["services"]


def test_prometheus_finds_both_sides_by_dns_at_the_ports_they_serve() -> None:
    compose = yaml.safe_load((ROOT / "compose" / "docker-compose.yaml").read_text())
    scrapes = yaml.safe_load((ROOT / "compose" / "prometheus.yml").read_text())
    found = {
        dns["names"][0]: dns["port"]
        for job in scrapes["scrape_configs"]
        for dns in job.get("dns_sd_configs", ())
    }
    assert found.keys() == {"frontend", "device-service"}
    for service, port in found.items():
        (command,) = compose["services"][service]["command"]
        assert f"--metrics-port {port} " in command
