"""Emulated CPUs: commands that run Python on them, set up from the machine's own package sources.

QEMU and a small Debian for arm64 come through `apt-get`, wheels for it through `pip`, both as this
machine is configured. They are unpacked below .venv/emulated and never installed; both tools verify
what they fetch, and a folder gets its name when it is whole.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv" / "emulated"
RUNTIME = ("numpy", "ml_dtypes", "protobuf", "safetensors", "scipy")
COMPILER = ("llvmlite",)
SECONDS = 300  # for one command that fetches

# What Linux says of such CPUs; QEMU shows the host's own words unless there is another file.
_NEHALEM = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse "
    "sse2 syscall nx rdtscp lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
)
_HASWELL = f"{_NEHALEM} fma movbe aes xsave avx f16c rdrand abm fsgsbase bmi1 avx2 bmi2 erms"
# What QEMU would warn of, in every thread.
_NOT_EMULATED = "-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
_CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"


class Unavailable(Exception):
    """Why this machine cannot emulate a CPU, and what helps."""


@dataclass(frozen=True)
class Guest:
    """An emulated CPU. `level`: the best code that it runs. `above`: a level that it lacks.
    `command`: runs Python. `path`: where its modules lie, if they are not those of this Python;
    `compiler`: where those lie that only compiling needs. `variables`: of the environment."""

    name: str
    level: str
    above: str
    command: tuple[str, ...]
    path: tuple[Path, ...] = ()
    compiler: tuple[Path, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def guests() -> list[Guest | Unavailable]:
    """All emulated CPUs of the tests, or why there is none of a kind."""
    found: list[Guest | Unavailable] = []
    for name, make in {
        "cortex-a72": _cortex_a72, "Nehalem": _nehalem, "Haswell": _haswell
    }.items():  # fmt: skip
        try:
            found.append(make())
        except Unavailable as reason:
            found.append(Unavailable(f"{name}: {reason}"))
    return found


def _cortex_a72() -> Guest:
    emulator, root = _emulator("aarch64"), _kept("arm64", _unpack_arm64)
    (python,) = (p for p in (root / "usr/bin").iterdir() if re.fullmatch(r"python3\.\d+", p.name))
    _say_features(root, "Features", _CORTEX_A72)
    number = python.name.removeprefix("python")
    return Guest(
        "cortex-a72", "neon", "avx2",
        (emulator, "-cpu", "cortex-a72", "-L", str(root), str(python), "-S"),
        (_wheels(number, RUNTIME), ROOT / ".venv/source"), (_wheels(number, COMPILER),),
    )  # fmt: skip


def _nehalem() -> Guest:
    return _x86("Nehalem", "baseline", "avx2", _NEHALEM)


def _haswell() -> Guest:
    return _x86("Haswell", "avx2", "avx512", _HASWELL)


def _x86(name: str, level: str, above: str, features: str) -> Guest:
    if platform.machine() != "x86_64":
        raise Unavailable("it runs this machine's own Python, which is not for x86-64")
    root = CACHE / name
    _say_features(root, "flags", features)
    cpu = f"{name},{_NOT_EMULATED}"
    command = (_emulator("x86_64"), "-cpu", cpu, "-L", str(root), sys.executable)
    # numpy's OpenBLAS mistakes some of these CPUs for newer ones and dies of their instructions.
    return Guest(name, level, above, command, variables=(("OPENBLAS_CORETYPE", name),))


def _say_features(root: Path, key: str, features: str) -> None:
    """What a program on the emulated CPU reads in /proc/cpuinfo."""
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\n{key}\t: {features}\n")


def _emulator(architecture: str) -> str:
    """QEMU's program for user mode: an installed one, or one that is fetched."""
    names = f"qemu-{architecture}-static", f"qemu-{architecture}"
    for name in names:
        if installed := shutil.which(name):
            return installed
    folder = _kept("qemu", lambda part: _unpack(part, "", "qemu-user-static")) / "usr/bin"
    return next(str(folder / name) for name in names if (folder / name).exists())


def _unpack_arm64(folder: Path) -> None:
    _unpack(folder, "arm64", "python3-minimal", "libpython3-stdlib", "libstdc++6")
    if not (folder / "lib").exists():  # where everything lies below /usr, a package makes the link
        (folder / "lib").symlink_to("usr/lib")


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, which `make` fills if it is not there."""
    folder = CACHE / name
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as part:
            make(Path(part) / name)
            (Path(part) / name).rename(folder)
    return folder


def _unpack(folder: Path, architecture: str, *names: str) -> None:
    """Debian's packages of these names, and what they need, unpacked into a folder; "" is this
    machine's architecture. The machine's own lists, cache and packages stay as they are."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("there is no apt-get to fetch QEMU with; install qemu-user-static")
    architecture = architecture or _output("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory() as state:
        for inner in ("lists/partial", "cache/archives/partial"):
            (Path(state) / inner).mkdir(parents=True)
        (Path(state) / "status").touch()
        options = {
            "Dir::State": state, "Dir::State::lists": f"{state}/lists",
            "Dir::State::status": f"{state}/status", "Dir::Cache": f"{state}/cache",
            "Dir::Log": state, "APT::Architecture": architecture,
            "APT::Architectures": architecture, "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
        }  # fmt: skip
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
        _output(*apt, "update")
        _output(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *names)
        for package in sorted((Path(state) / "cache/archives").glob("*.deb")):
            _output("dpkg-deb", "-x", str(package), str(folder))


def _wheels(number: str, names: Sequence[str]) -> Path:
    """A folder with these packages for Python `number` on aarch64, in the versions of this
    environment."""
    wanted = [f"{name}=={version(name)}" for name in names]
    digest = hashlib.blake2b(" ".join([number, *wanted]).encode(), digest_size=6).hexdigest()

    def fetch(folder: Path) -> None:
        platforms = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 37))]
        with tempfile.TemporaryDirectory() as part:
            _output(
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                "--only-binary=:all:", "--python-version", number, "--dest", part,
                *(f"--platform={platform}_aarch64" for platform in platforms), *wanted,
            )  # fmt: skip
            for wheel in sorted(Path(part).glob("*.whl")):
                zipfile.ZipFile(wheel).extractall(folder)

    return _kept(f"wheels-{digest}", fetch)


def _output(*command: str) -> str:
    """What a command prints; Unavailable if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {SECONDS} s; try again") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split("\n")[-4:]).strip()
        tool = " ".join(command[:3]) if command[0] == sys.executable else command[0]
        raise Unavailable(f"{tool} failed: {said}; check the network and its configuration")
    return done.stdout
