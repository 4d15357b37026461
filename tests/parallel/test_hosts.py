"""Trainings over machines: agents of torchrun beside each other, and hosts with addresses and links of their own.

The hosts are network namespaces of the kernel, joined by a bridge in another one: nothing of it is seen outside.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_processes import Command, Stage, free_port, is_running, wait_until

pytestmark = pytest.mark.parallel
QUICK = "last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=5,read_timeout=20"
TIMEOUT = "15"


def agent(here: Stage, endpoint: str, leads: bool, prefix: list[str] | None = None, address: str = "") -> Command:
    """An agent with one worker, of two or three that meet; the leading one hosts their meeting."""
    words = ["-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", "1", "--max-restarts", "3"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", here.folder.name]
    words += ["--rdzv-conf", f"is_host={int(leads)},{QUICK}", *(["--local-addr", address] if address else [])]
    environment = {"GLOO_SOCKET_IFNAME": "eth0"} if prefix else {}
    return here.start(
        [*words, *here.words("run", "--timeout", TIMEOUT)],
        prefix or (),
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        **environment,
    )


def test_agents_meet_again_with_fewer_after_one_is_killed(here: Stage, undisturbed: dict[int, float]) -> None:
    endpoint = f"localhost:{free_port()}"
    agents = [agent(here, endpoint, leads=number == 0) for number in range(3)]
    pids = here.held(3)
    own = workers_of(agents[2], pids)
    os.kill(agents[2].pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, own)), "the end of the orphans")
    here.go()
    assert [agents[0].ended(), agents[1].ended()] == [0, 0], agents[0].said
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)
    assert re.search("continuing from step (5|10)\n", agents[0].errors + agents[1].errors)


def workers_of(command: Command, pids: list[int]) -> list[int]:
    """The workers that are children of the agent."""
    found = [pid for pid in pids if f"\nPPid:\t{command.pid}\n" in Path(f"/proc/{pid}/status").read_text()]
    assert found
    return found


@dataclass(frozen=True)
class Host:
    """A namespace with one address; `link` is its side of the cable, at the bridge."""

    name: str
    address: str
    bridge: str
    link: str

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        ip("-n", self.bridge, "link", "set", self.link, "down")


def ip(*words: str) -> None:
    found = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    if found.returncode:
        raise OSError(f"ip {' '.join(words)}: {found.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Three hosts in a private network; the last one has the highest address."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip (iproute2): networks of hosts cannot be made")
    bridge = f"weft-{os.getpid()}-bridge"
    made = [Host(f"weft-{os.getpid()}-{n}", f"10.199.77.{10 + n}", bridge, f"port{n}") for n in range(3)]
    try:
        ip("netns", "add", bridge)
    except OSError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        ip("-n", bridge, "link", "add", "joint", "type", "bridge")
        ip("-n", bridge, "link", "set", "joint", "up")
        for host in made:
            ip("netns", "add", host.name)
            ip("-n", bridge, "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            ip("-n", bridge, "link", "set", host.link, "master", "joint", "up")
            ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", host.name, "link", "set", device, "up")
            # torchrun waits for a store behind a cut link until TCP gives up: 15 minutes with 15 tries.
            ip("netns", "exec", host.name, "sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_retries2")
        yield made
    finally:
        for name in (bridge, *(host.name for host in made)):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30, check=False)


def start_on(hosts: list[Host], here: Stage) -> list[Command]:
    """An agent on each host; the last one hosts their meeting, and workers of the first have rank 0."""
    endpoint = f"{hosts[-1].address}:29400"
    return [agent(here, endpoint, host is hosts[-1], host.prefix, host.address) for host in hosts]


def test_hosts_go_on_after_the_first_one_died(hosts: list[Host], here: Stage, undisturbed: dict[int, float]) -> None:
    agents = start_on(hosts, here)
    pids = here.held(3)
    for pid in (agents[0].pid, *workers_of(agents[0], pids)):
        os.kill(pid, signal.SIGKILL)
    here.go()
    assert [agents[1].ended(), agents[2].ended()] == [0, 0], agents[1].said
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)


def test_hosts_go_on_after_a_link_was_cut(hosts: list[Host], here: Stage, undisturbed: dict[int, float]) -> None:
    agents = start_on(hosts, here)
    pids = here.held(3)
    hosts[0].cut()
    here.go()
    assert [agents[1].ended(), agents[2].ended()] == [0, 0], agents[1].said
    assert here.losses("run") == pytest.approx(undisturbed, abs=1e-10, rel=0)
    assert agents[0].ended() != 0
    assert not any(map(is_running, pids))
    assert "weft: rank 0 of 3: processes 1, 2 were killed, or did not answer" in agents[0].errors, agents[0].said


def test_all_end_after_the_host_of_the_meeting_died(hosts: list[Host], here: Stage) -> None:
    agents = start_on(hosts, here)
    pids = here.held(3)
    for pid in (agents[2].pid, *workers_of(agents[2], pids)):
        os.kill(pid, signal.SIGKILL)
    here.go()
    assert all(command.ended() for command in agents[:2])
    told = re.findall("^weft: rank [01] of 3: process 2 was killed", agents[0].errors + agents[1].errors, re.MULTILINE)
    assert len(told) == 1, agents[0].said + agents[1].said
    assert not any(map(is_running, pids))
