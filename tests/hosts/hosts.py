#!/usr/bin/env python3
"""Several hosts on one machine: own addresses, own names, and links with delay and bandwidth.

Each host is a network namespace with one point-to-point device. One process carries the packets
from device to device, and keeps each one back for as long as the link would need; no kernel module
is used. Processes, memory and files are those of this machine. Linux, root only::

    hosts.py up h0:0 h1:1 h2:5 h3:20:100    name:delay[:bandwidth], ms one way and Mbit/s
    hosts.py run h1 COMMAND ...             run a command there
    hosts.py cut h3                         nothing goes to h3 or comes from it, without a word
    hosts.py mend h3
    hosts.py status
    hosts.py down                           kill what runs there and remove everything

A packet from h1 to h2 is under way for the delays of both. ``CODEDLA_HOSTS`` names the set of hosts
(default ``cdla``), so that several can exist. ``agent.sh`` beside this file stands in for ssh::

    hosts.py run h0 mpirun --prtemca plm_ssh_agent .../agent.sh --host h0:1,h1:1 ...
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 0x40000, 0x1000
MTU = 9000
QUEUE = 20_000
"""Packets under way at most; more are lost, as in a switch."""

NAME = os.environ.get("CODEDLA_HOSTS", "cdla")
STATE = Path("/run") / f"codedla-hosts-{NAME}"
CONTROL = STATE / "control"


class HostsError(Exception):
    """Something that the user can mend."""


@dataclass
class Host:
    """One host and its link."""

    name: str
    delay: float
    rate: float = 0.0
    number: int = 0
    device: int = -1
    cut: bool = False
    #: When the link is free again, by direction.
    busy: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})

    @classmethod
    def parse(cls, text: str, number: int) -> Host:
        found = re.fullmatch(r"([a-z][a-z0-9]*):(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?", text)
        if found is None:
            raise HostsError(f"a host is name:delay[:Mbit/s], h1:5 for instance; got {text!r}")
        name, delay, rate = found.groups(default="0")
        return cls(name, float(delay) / 1e3, float(rate) * 1e6 / 8, number)

    @property
    def namespace(self) -> str:
        return f"{NAME}-{self.name}"

    @property
    def address(self) -> str:
        return f"10.78.0.{10 + self.number}"


# ---------------------------------------------------------------- carrying packets


class Carrier:
    """Move packets between the devices, each after its delay; obey the control socket."""

    def __init__(self, hosts: list[Host], control: socket.socket) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.by_device = {host.device: host for host in hosts}
        self.by_address = {socket.inet_aton(host.address): host for host in hosts}
        self.control = control
        self.under_way: list[tuple[float, int, Host, Host, bytes]] = []
        self.carried = self.lost = 0
        self.running = True

    def run(self) -> None:
        sources = [*self.by_device, self.control]
        while self.running:
            wait = self.under_way[0][0] - time.monotonic() if self.under_way else 1.0
            ready, _, _ = select.select(sources, [], [], max(0.0, wait))
            for source in ready:
                if source is self.control:
                    self.obey()
                else:
                    self.take(self.by_device[source])
            self.deliver()

    def take(self, sender: Host) -> None:
        for _ in range(64):
            try:
                packet = os.read(sender.device, MTU + 64)
            except BlockingIOError:
                return
            receiver = self.by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if receiver is None:  # IPv6 chatter, broadcasts
                continue
            if sender.cut or receiver.cut or len(self.under_way) >= QUEUE:
                self.lost += 1
                continue
            due = time.monotonic()
            for host, way in ((sender, "up"), (receiver, "down")):
                if host.rate:
                    due = max(due, host.busy[way]) + len(packet) / host.rate
                    host.busy[way] = due
            due += sender.delay + receiver.delay
            self.carried += 1
            heapq.heappush(self.under_way, (due, self.carried, sender, receiver, packet))

    def deliver(self) -> None:
        while self.under_way and self.under_way[0][0] <= time.monotonic():
            _, _, sender, receiver, packet = heapq.heappop(self.under_way)
            if sender.cut or receiver.cut:
                self.lost += 1
                continue
            try:
                os.write(receiver.device, packet)
            except OSError:  # the device is down, or its queue is full
                self.lost += 1

    def obey(self) -> None:
        peer, _ = self.control.accept()
        with peer:
            peer.settimeout(1.0)
            try:
                word, _, name = peer.recv(200).decode().partition(" ")
                peer.sendall(json.dumps(self.answer(word, name)).encode())
            except OSError:  # it did not wait for the answer
                return

    def answer(self, word: str, name: str) -> object:
        if word in ("cut", "mend"):
            if name not in self.hosts:
                return {"error": f"there is no host {name!r}"}
            self.hosts[name].cut = word == "cut"
        elif word == "stop":
            self.running = False
        return {
            "carried": self.carried,
            "lost": self.lost,
            "cut": [host.name for host in self.hosts.values() if host.cut],
        }


# ---------------------------------------------------------------- setting up


def up(words: list[str]) -> None:
    """Make the hosts and leave a process behind that carries their packets."""
    hosts = [Host.parse(text, number) for number, text in enumerate(words)]
    if len({host.name for host in hosts}) < len(hosts) or not hosts:
        raise HostsError(f"hosts have different names, and there is one at least; got {words}")
    if CONTROL.exists() and ask("status") is not None:
        raise HostsError(f"hosts of the set {NAME!r} are up already; take them down first")
    down()
    STATE.mkdir(mode=0o755)
    try:
        for host in hosts:
            make(host)
        names = "".join(f"{host.address} {host.name}\n" for host in hosts)
        (STATE / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.bind(str(CONTROL))
        control.listen()
        if os.fork() == 0:
            carry(hosts, control)
    except BaseException:
        down()
        raise


def make(host: Host) -> None:
    """Make a namespace with one device whose other end is in this process."""
    host.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    device = f"{NAME}{host.number}"
    fcntl.ioctl(host.device, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    inside = ("-n", host.namespace)
    ip("netns", "add", host.namespace)
    ip("link", "set", device, "netns", host.namespace)
    ip(*inside, "link", "set", device, "name", "eth0", "mtu", str(MTU), "txqueuelen", "5000")
    ip(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
    ip(*inside, "link", "set", "eth0", "up")
    ip(*inside, "link", "set", "lo", "up")


def carry(hosts: list[Host], control: socket.socket) -> NoReturn:
    """Be the process in the background."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(STATE / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, handle in ((0, null), (1, log), (2, log)):
            os.dup2(handle, number)
        os.chdir("/")
        (STATE / "pid").write_text(str(os.getpid()))
        Carrier(hosts, control).run()
        code = 0
    finally:
        os._exit(code)


def down() -> None:
    """Kill what runs on the hosts, stop the carrier, remove everything; fine if nothing is up."""
    carrier = (STATE / "pid").read_text() if (STATE / "pid").exists() else ""
    if CONTROL.exists():
        ask("stop")
    listed = ip("netns", "list").splitlines()
    namespaces = [line.split()[0] for line in listed if line.startswith(f"{NAME}-")]
    for _ in range(40):
        pids = [pid for name in namespaces for pid in ip("netns", "pids", name).split()]
        if not pids:
            break
        for pid in map(int, pids):
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
    for name in namespaces:
        ip("netns", "delete", name)
    if carrier and is_carrier(int(carrier)):
        time.sleep(0.2)
        if is_carrier(int(carrier)):
            send(int(carrier), signal.SIGKILL)
    shutil.rmtree(STATE, ignore_errors=True)


def is_carrier(pid: int) -> bool:
    try:
        return b"hosts.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def ask(words: str) -> dict[str, object] | None:
    """Talk to the carrier; None when it is not there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(5.0)
        try:
            peer.connect(str(CONTROL))
            peer.sendall(words.encode())
            return json.loads(peer.recv(10_000))
        except (OSError, ValueError):
            return None


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


# ---------------------------------------------------------------- running there


def run(name: str, command: list[str]) -> NoReturn:
    """Become a command on a host: its network, its name, and its view of the others' names."""
    path = Path("/run/netns") / f"{NAME}-{name}"
    if not path.exists():
        raise HostsError(f"there is no host {name!r}; see: hosts.py status")
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> None:
        if getattr(libc, function)(*arguments):
            number = ctypes.get_errno()
            raise HostsError(f"{function}: {os.strerror(number)}")

    handle = os.open(path, os.O_RDONLY)
    call("setns", handle, CLONE_NEWNET)
    os.close(handle)
    call("unshare", CLONE_NEWUTS | CLONE_NEWNS)
    socket.sethostname(name)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    call("mount", bytes(STATE / "hosts"), b"/etc/hosts", None, MS_BIND, None)
    os.execvp(command[0], command)


def main(words: list[str]) -> int:
    """Carry out one command."""
    try:
        match words:
            case ["up", *hosts]:
                up(hosts)
            case ["down"]:
                down()
            case ["run", name, *command] if command:
                run(name, command)
            case ["rsh", *rest]:
                # Called like ssh: options, a host, and the words of one shell command.
                while rest and rest[0].startswith("-"):
                    rest.pop(0)
                run(rest[0], ["/bin/sh", "-c", " ".join(rest[1:])])
            case ["cut" | "mend" | "status" as word, *names]:
                for name in names or [""]:
                    answer = ask(f"{word} {name}".strip())
                    if answer is None:
                        raise HostsError(f"no hosts of the set {NAME!r} are up")
                    if "error" in answer:
                        raise HostsError(str(answer["error"]))
                    print(json.dumps(answer))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (HostsError, OSError) as error:
        print(f"hosts.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
