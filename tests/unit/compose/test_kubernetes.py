"""What can be said of the manifests without a cluster: built by kubectl, judged by
Kubernetes' own schemas, and compared with what the commands really take."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from ttserve.launcher.flag_table import TABLE

ROOT = Path(__file__).parents[3]
K8S = ROOT / "compose" / "k8s"
OVERLAYS = ("demo", "tenstorrent")
KUBECTL = Path(sys.executable).with_name("kubectl")
SERVICE_MONITOR = json.loads(
    Path(__file__).with_name("service_monitor.json").read_text()
)
# From the first that serves resource.k8s.io/v1 to the newest that is known.
VERSIONS = ("1.34", kubernetes_validate.latest_version())

Manifest = dict[str, Any]


@cache
def built(overlay: str) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        [KUBECTL, "kustomize", K8S / "overlays" / overlay],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in built(overlay) if manifest["kind"] in kinds]


def named(overlay: str, kind: str, name: str) -> Manifest:
    (found,) = (m for m in of_kind(overlay, kind) if m["metadata"]["name"] == name)
    return found


def workloads(overlay: str) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Name, pod template and only container of each."""
    for manifest in of_kind(overlay, "StatefulSet", "Deployment"):
        template = manifest["spec"]["template"]
        (container,) = template["spec"]["containers"]
        yield manifest["metadata"]["name"], template, container


def flags(container: Manifest) -> dict[str, str]:
    pairs = (argument.partition("=") for argument in container["args"])
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_keeps_to_its_schema(overlay: str, version: str) -> None:
    for manifest in built(overlay):
        if manifest["kind"] == "ServiceMonitor":
            jsonschema.validate(manifest, SERVICE_MONITOR)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_commands_take_the_flags(overlay: str) -> None:
    known: dict[str, set[str]] = {"device": set(), "frontend": set()}
    for (owner, _), text in TABLE.items():
        known[owner].update(text.split())
    # The table has one owner for a flag that both have.
    page = (ROOT / "docs" / "OPTIONS.md").read_text()
    known["device"].update(re.findall(r"^\| `(--[a-z-]+)`", page, re.M))
    for name, _, container in workloads(overlay):
        assert flags(container).keys() <= known[name.partition("-")[0]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_is_not_killed_before_its_drain_is_over(overlay: str) -> None:
    grace = {"device-service": "--shutdown-grace", "frontend": "--shutdown-timeout"}
    for name, template, container in workloads(overlay):
        seconds = float(flags(container)[grace[name]])
        assert template["spec"]["terminationGracePeriodSeconds"] > seconds + 2


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_frontend_serves_until_its_endpoint_is_gone(overlay: str) -> None:
    *_, container = next(w for w in workloads(overlay) if w[0] == "frontend")
    probe = container["readinessProbe"]
    noticed = (
        probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    )
    assert float(flags(container)["--drain-delay"]) > noticed


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_as_restricted_as_can_be(overlay: str) -> None:
    for _, template, container in workloads(overlay):
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_images_run_as_the_user_that_pods_run_as(overlay: str) -> None:
    for name, template, _ in workloads(overlay):
        dockerfile = (ROOT / "compose" / f"{name}.Dockerfile").read_text()
        (uid,) = re.findall(r"useradd --uid (\d+)", dockerfile)
        assert template["spec"]["securityContext"]["runAsUser"] == int(uid)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_who_is_named_is_there(overlay: str) -> None:
    """Selectors find pods, ports have names, mounts have volumes."""
    labels = [template["metadata"]["labels"] for _, template, _ in workloads(overlay)]
    ports = {p["name"] for *_, c in workloads(overlay) for p in c["ports"]}
    for manifest in built(overlay):
        spec = manifest.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        if manifest["kind"] == "ServiceMonitor":
            found = [s["metadata"]["labels"] for s in of_kind(overlay, "Service")]
        else:
            found = labels
        assert any(wanted.items() <= some.items() for some in found), manifest
    for service in of_kind(overlay, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for _, template, container in workloads(overlay):
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts - volumes <= {"data"}  # a claim of the StatefulSet
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            (how,) = container[kind].keys() & {"grpc", "httpGet"}
            port = container[kind][how]["port"]
            own = [(p["name"], p["containerPort"]) for p in container["ports"]]
            assert any(port in pair for pair in own)


def test_frontends_find_device_services_by_the_headless_name() -> None:
    service = named("tenstorrent", "Service", "device-service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    *_, container = next(w for w in workloads("tenstorrent") if w[0] == "frontend")
    (port,) = (port["port"] for port in service["spec"]["ports"])
    assert flags(container)["--device-service"] == f"device-service:{port}"


def test_the_autoscaler_reads_metrics_that_exist() -> None:
    hpa = named("tenstorrent", "HorizontalPodAutoscaler", "frontend")
    adapter = yaml.safe_load(
        (K8S / "components/autoscaling/prometheus-adapter-values.yaml").read_text()
    )
    (rule,) = adapter["rules"]["custom"]
    (series,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    package = importlib.util.find_spec("vllm")
    assert package is not None
    assert package.submodule_search_locations is not None
    metrics = Path(package.submodule_search_locations[0], "v1/metrics/loggers.py")
    exported = set(re.findall(r'"(vllm:\w+)"', metrics.read_text()))
    served = {
        re.sub(rule["name"]["matches"], r"vllm_\1", name)
        for name in exported
        if re.fullmatch(series, name)
    }
    asked = {metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]}
    assert asked == served
    assert rule["name"]["as"] == "vllm_${1}"
    target = hpa["spec"]["scaleTargetRef"]
    scaled = named("tenstorrent", target["kind"], target["name"])
    assert "replicas" not in scaled["spec"]


def test_the_page_names_every_secret() -> None:
    page = (ROOT / "docs" / "KUBERNETES.md").read_text()
    text = yaml.safe_dump_all(built("tenstorrent"))
    keys = re.findall(r"secretKeyRef:\n +key: (\S+)\n +name: (\S+)", text)
    files = re.findall(r"secretName: (\S+)", text)
    assert keys
    assert files
    for key, name in (*keys, *(("token", name) for name in files)):
        assert re.search(rf"create secret generic {name} .*--from-\w+={key}=", page)
