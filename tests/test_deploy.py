"""The files of voiceloop/deploy and the page about them name what exists, and parse."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from voiceloop.cli import build_parser
from voiceloop.cluster.control.plan import read_plan
from voiceloop.config import Config, Limits
from voiceloop.http.transcription import MAX_UPLOAD_BYTES
from voiceloop.operation import SERVICE_DRAIN_S

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "voiceloop" / "deploy"
PAGE = (ROOT / "voiceloop" / "docs" / "DEPLOY.md").read_text(encoding="utf-8")
KUBERNETES = "1.37"
INSTRUCTIONS = {"ARG",
    "FROM", "ENV", "RUN", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT",
    "CMD", "COPY", "USER",
}  # fmt: skip


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The Containerfile, its comments gone and its continued lines joined."""
    lines = re.sub(r"^#.*\n", "", text_of("Containerfile"), flags=re.MULTILINE)
    joined = re.sub(r"\\\n\s*", "", lines)
    return [
        (word, rest) for word, _, rest in (li.partition(" ") for li in joined.split("\n") if li)
    ]


def test_every_file_is_on_the_page_and_in_the_folder() -> None:
    linked = set(re.findall(r"\(\.\./deploy/([\w.]+)\)", PAGE))
    files = {path.name for path in DEPLOY.iterdir()}
    assert linked == files - {"Containerfile.dockerignore"}


def test_the_containerfile_has_three_images_of_one_base() -> None:
    found = instructions()
    assert {word for word, _ in found} <= INSTRUCTIONS
    stages = [rest.split() for word, rest in found if word == "FROM"]
    assert [stage[2] for stage in stages] == ["base", "nvidia", "cluster", "cpu"]
    assert [stage[0] for stage in stages[1:]] == ["base", "nvidia", "base"]
    base = dict(rest.split("=", 1) for word, rest in found if word == "ARG" and "=" in rest)["BASE"]
    assert stages[0][0] == "$BASE"
    version = re.fullmatch(r"python:(3\.\d+)-slim-bookworm", base)
    assert version is not None and version[1] in ("3.11", "3.12")


def test_the_images_install_nothing_from_an_index_without_its_hash() -> None:
    runs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    commands = [one for rest in runs for one in re.findall(r"pip install ([^&;]*)", rest)]
    lists = r"--require-hashes -r /locks/(\w+)\.txt( -r /locks/webrtc\.txt)?\s*"
    locked = [re.fullmatch(lists, one) for one in commands]
    assert [one[1] for one in locked if one] == ["build", "gpu", "cluster", "cpu"]
    assert [bool(one[2]) for one in locked if one] == [False, True, False, True]
    others = [one.strip() for one, lock in zip(commands, locked, strict=True) if not lock]
    assert others == [
        "--no-deps --no-build-isolation /src",
        # Only where it is asked for:
        '-c /src/constraints.txt --no-deps --index-url "$TORCH_INDEX" torch',
        "--no-deps --no-build-isolation /src",
    ]


def test_the_image_starts_a_server_whose_flags_exist_and_is_asked_whether_it_lives() -> None:
    by_word = dict(instructions())
    [command] = re.findall(r"\[(.*)\]", by_word["CMD"])
    arguments = re.findall(r'"([^"]*)"', command)
    given = build_parser().parse_args(arguments)
    assert (given.host, given.port) == ("0.0.0.0", None)
    assert by_word["EXPOSE"] == str(Config().port)
    assert f'-v "$PWD/keys:{given.keys_file}:ro"' in PAGE
    assert f"127.0.0.1:{Config().port}/healthz" in by_word["HEALTHCHECK"]


def test_a_container_that_is_stopped_lets_its_calls_end() -> None:
    waits = re.findall(r"docker run (?:.*?)--stop-timeout (\d+)", PAGE)
    served = [line for line in PAGE.splitlines() if line.startswith("docker run") and "-p " in line]
    assert len(waits) == len(served) == 2
    assert all(int(wait) > SERVICE_DRAIN_S + 5 for wait in waits)


def test_what_the_image_leaves_out_is_in_no_installation() -> None:
    ignored = {one.strip("*/") for one in text_of("Containerfile.dockerignore").split("\n")[1:]}
    packages = {"voiceloop", "engine", "audio", "clients", "pyproject.toml", "constraints.txt"}
    assert not ignored & packages and {"tests", "benchmarks", ".venv"} <= ignored


def manifest() -> dict[str, list[Any]]:
    """What kuberay.yaml describes, by kind."""
    found: dict[str, list[Any]] = {}
    for one in yaml.safe_load_all(text_of("kuberay.yaml")):
        found.setdefault(one["kind"], []).append(one)
    return found


def pods_of(ray: Any) -> dict[str, Any]:
    head = ray["spec"]["headGroupSpec"]
    return {one.get("groupName", "head"): one["template"]
            for one in (head, *ray["spec"]["workerGroupSpecs"])}  # fmt: skip


def test_the_manifests_pods_run_under_the_restricted_profile_of_pod_security() -> None:
    found = manifest()
    [namespace], [ray] = found["Namespace"], found["RayCluster"]
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    named = {one["metadata"].get("namespace") for kind in found.values() for one in kind}
    assert named == {None, namespace["metadata"]["name"]}
    for template in pods_of(ray).values():
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True and pod["runAsUser"] == 10001
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in template["spec"]["containers"]:  # KubeRay's own take it over from these
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
        volumes = template["spec"].get("volumes", [])
        assert not any("hostPath" in volume for volume in volumes)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & template["spec"].keys()
    autoscaler = ray["spec"]["autoscalerOptions"]["securityContext"]
    assert autoscaler["allowPrivilegeEscalation"] is False


def test_the_manifest_is_valid_by_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the extra dev").validate
    found = manifest()
    [ray] = found.pop("RayCluster")  # KubeRay's own; of Kubernetes are its pods
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        for name, template in pods_of(ray).items()
    ]
    for one in [*pods, *(one for kind in found.values() for one in kind)]:
        validate(one, KUBERNETES, strict=True)  # raises: also where a field is unknown
    assert f"Kubernetes {KUBERNETES}" in (ROOT / "voiceloop" / "docs" / "CLUSTER.md").read_text()


def test_the_manifest_has_ray_ask_for_a_token_and_lets_in_callers_alone() -> None:
    found = manifest()
    [ray] = found["RayCluster"]
    assert ray["spec"]["authOptions"] == {"mode": "token"}
    assert f"ray=={ray['spec']['rayVersion']}" in (ROOT / "constraints.txt").read_text()
    policies = {one["metadata"]["name"]: one["spec"] for one in found["NetworkPolicy"]}
    every, gateways = policies["voiceloop-cluster"], policies["voiceloop-gateways"]
    own = {"podSelector": {"matchLabels": {"ray.io/cluster": ray["metadata"]["name"]}}}
    assert every["podSelector"] == own["podSelector"]  # which KubeRay gives each of its pods
    assert every["policyTypes"] == ["Ingress", "Egress"] and every["ingress"] == [{"from": [own]}]
    labels = pods_of(ray)["gateways"]["metadata"]["labels"]
    assert gateways["podSelector"]["matchLabels"] == labels
    port = found["Service"][0]["spec"]["ports"][0]["targetPort"]
    assert gateways["ingress"] == [{"ports": [{"protocol": "TCP", "port": port}]}]
    assert "ingress" not in policies["voiceloop-head"] and len(policies) == 3


def test_the_manifest_runs_a_plan_that_its_machines_have_room_for(tmp_path: Path) -> None:
    [plan], [ray] = manifest()["ConfigMap"], manifest()["RayCluster"]
    path = tmp_path / "cluster.toml"
    path.write_text(plan["data"]["cluster.toml"], encoding="utf-8")
    groups = {group.name: group for group in read_plan(path)}
    pods = {one["groupName"]: one for one in ray["spec"]["workerGroupSpecs"]}

    gateways, models = pods["gateways"], pods["models"]
    [offered] = re.findall(r'gateway\\": (\d+)', gateways["rayStartParams"]["resources"])
    assert groups["gateways"].needs["gateway"] == 1.0
    assert int(offered) * gateways["maxReplicas"] >= groups["gateways"].most
    assert int(offered) * gateways["minReplicas"] >= groups["gateways"].least
    of_models = [group for group in groups.values() if group.roles]
    assert {role for group in of_models for role in group.roles} == {
        "engine",
        "recognizer",
        "voice",
    }
    for key, most in (("minReplicas", "least"), ("maxReplicas", "most")):
        assert models[key] >= sum(group.needs["GPU"] * getattr(group, most) for group in of_models)
        asked = models["template"]["spec"]["containers"][0]["resources"]["requests"]
        cpus = sum(group.needs["CPU"] * getattr(group, most) for group in of_models)
        assert int(asked["cpu"]) * models[key] >= cpus


def test_the_manifest_sends_calls_to_gateways_and_lets_them_end() -> None:
    [service], [ray] = manifest()["Service"], manifest()["RayCluster"]
    pods = pods_of(ray)
    head = pods.pop("head")
    assert service["spec"]["selector"].items() <= pods["gateways"]["metadata"]["labels"].items()
    [port] = pods["gateways"]["spec"]["containers"][0]["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["containerPort"] == Config().port
    for template in (head, *pods.values()):
        [container] = template["spec"]["containers"]
        assert container["image"] == "voiceloop:cluster" and "-t voiceloop:cluster" in text_of(
            "Containerfile"
        )
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert variables == {"RAY_kill_child_processes_on_worker_exit": "0"}
    for template in pods.values():
        assert template["spec"]["terminationGracePeriodSeconds"] > SERVICE_DRAIN_S
    assert ray["spec"]["enableInTreeAutoscaling"] is True
    for name in re.findall(r"--from-literal=(\w+)", text_of("kuberay.yaml")):
        assert name.removeprefix("VOICELOOP_").lower() in ("keys", "workers_key", "secret_key")


def test_the_unit_starts_a_server_whose_flags_exist() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text_of("voiceloop.service"))
    service = unit["Service"]
    _, *arguments = shlex.split(service["ExecStart"])
    given = build_parser().parse_args(arguments)
    assert str(given.config) in PAGE and given.keys_file == "%d/keys"
    assert service["LoadCredential"].partition(":")[2] in PAGE
    # The server is let end its calls and its workers before it is killed.
    assert int(service["TimeoutStopSec"]) > SERVICE_DRAIN_S + 5
    # What the unit sets is stronger than the file that its owner writes.
    settings = re.findall(r"VOICELOOP_\w+", text_of("voiceloop.service"))
    assert settings == [], "set it in voiceloop.toml"
    assert "AF_UNIX" in service["RestrictAddressFamilies"]  # the workers' sockets


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    path = tmp_path / "voiceloop.service"
    path.write_text(
        text_of("voiceloop.service").replace("/opt/voiceloop/bin/voiceloop", "/bin/true")
    )
    told = subprocess.run([tool, "verify", path], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")


def directives(text: str) -> dict[str, str]:
    """nginx's directives by name, the last of a name."""
    bare = re.sub(r"#.*", "", text)
    return dict(re.findall(r"^\s*(\w+)\s+([^;{}]*);", bare, re.MULTILINE))


def test_the_proxies_pass_calls_and_the_largest_upload_on() -> None:
    nginx, caddy = directives(text_of("nginx.conf")), text_of("Caddyfile")
    own = f"127.0.0.1:{Config().port}"
    assert nginx["proxy_pass"] == f"http://{own}" and f"reverse_proxy {own} {{" in caddy
    assert nginx["proxy_http_version"] == "1.1" and nginx["proxy_buffering"] == "off"
    assert 'proxy_set_header Connection "upgrade";' in text_of("nginx.conf")
    assert "proxy_set_header Upgrade $http_upgrade;" in text_of("nginx.conf")
    assert int(nginx["proxy_read_timeout"].rstrip("s")) > 60 * Limits().session_minutes
    mebibytes = MAX_UPLOAD_BYTES / 2**20
    assert int(nginx["client_max_body_size"].rstrip("m")) > mebibytes
    [megabytes] = re.findall(r"max_size (\d+)MB", caddy)
    assert int(megabytes) * 10**6 > MAX_UPLOAD_BYTES
    assert caddy.count("{") == caddy.count("}") == 3


@pytest.mark.parametrize("name", re.findall(r"`limits\.(\w+)`", PAGE))
def test_the_bounds_on_the_page_exist(name: str) -> None:
    assert hasattr(Limits(), name)
