"""`girih doctor`: what a file is, what it needs, what works here, and what would mend the rest."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..compiler import compile as compile_program
from ..frontends.jax.exported import read_export_file
from ..frontends.xla import is_hlo, is_hlo_text
from ..hlo.errors import CompilerBug, ImportBlockers, UserError
from ..hlo.extras import is_installed
from ..hlo.files import kind_of_file
from ..hlo.graph import Module
from ..hlo.versions import FORMAT_VERSION, version_tuple
from ..hlo.wire import read_message
from ..imports import import_model
from ..optimizer.pipeline import run_pipeline, simplify_pipeline
from ..runtime import devices
from ..runtime.bundle import Bundle
from ..runtime.devices import family
from ..runtime.devices.cpu import lacks
from ..runtime.devices.libraries import address_of
from ..runtime.loading import choose_variant
from ..runtime.parts import decode_module
from ..runtime.plans import check_version, parse_plan
from . import show

HEALTHY, MENDABLE, UNREADABLE = range(3)  # exit codes

_ZIP, _BYTECODE = b"PK\x03\x04", b"ML\xefR"
_COMPILER = "install the compiler: pip install 'girih[cpu]'"


class Problem(NamedTuple):
    """Something that does not work here: where, why, and what would help."""

    place: str
    reason: str
    remedy: str


@dataclass
class Findings:
    """Everything that is known about a file. `can` has "read", "compile" and, of bundles, "run"."""

    file: str
    kind: str = "unknown"
    version: str = ""
    producer: str = ""
    needs: dict[str, str] = field(default_factory=dict)  # feature -> version that brought it
    operations: dict[str, int] = field(default_factory=dict)
    variants: list[dict[str, Any]] = field(default_factory=list)
    can: dict[str, bool] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, place: str, reason: object, remedy: str = "") -> None:
        """Note a problem, once."""
        problem = Problem(place, str(reason), remedy)
        if problem not in self.problems:
            self.problems.append(problem)

    @property
    def exit_code(self) -> int:
        """0: all works; 1: it can be read, and something has to be mended; 2: it cannot be read."""
        if not self.can.get("read"):
            return UNREADABLE
        return HEALTHY if all(self.can.values()) and not self.problems else MENDABLE


def examine(path: Path, compile_too: bool = False) -> Findings:
    """What is known about a file; never raises for what stands in it."""
    findings = Findings(str(path))
    if path.is_dir() and (kind := kind_of_file(path)) is not None:
        findings.kind, findings.can["read"] = kind.what, False
        findings.add("", f"this is {kind.what}", kind.advice)
        return findings
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        findings.can["read"] = False
        findings.add("", f"cannot be read: {error.strerror}", "check the path and its permissions")
        return findings
    if head.startswith(_ZIP) and head[30:].startswith(b"program.pb"):
        _bundle(findings, path, compile_too)
    else:
        _source(findings, path, head, compile_too)
    return findings


# Sources.


def _source(findings: Findings, path: Path, head: bytes, compile_too: bool) -> None:
    findings.can = {"read": False, "compile": False}
    if (kind := kind_of_file(path)) is not None and not kind.source:
        findings.kind = kind.what
        return findings.add("", f"this is {kind.what}", kind.advice)
    findings.kind, findings.version, findings.producer = _described(path, head)
    try:
        module = import_model(path)
    except ImportBlockers as error:
        for blocker in error.blockers:
            place = f"{blocker.place} {blocker.operation}".strip()
            findings.add(place, blocker.reason, blocker.remedy)
    except UserError as error:
        findings.add("", error, _advice(findings.kind))
    else:
        findings.can["read"] = True
        _module(findings, module, compile_too)


def _described(path: Path, head: bytes) -> tuple[str, str, str]:
    """(kind, format version, producer) by the first bytes; "" where a kind does not say."""
    if not head:
        return "empty file", "", ""
    if head.startswith(_BYTECODE):
        producer = head[5:].partition(b"\0")[0].decode("utf-8", "replace")
        return "StableHLO portable artifact", producer.removeprefix("StableHLO_v"), producer
    if head.startswith(_ZIP):
        return "PyTorch archive (.pt2)", _archive_version(path), "torch.export"
    if b"\0" not in head:
        text = head.decode("utf-8", "replace")
        if is_hlo_text(text):
            return "XLA HLO text", "", ""
        is_mlir = any(word in text for word in ("stablehlo.", "module", "func.func", "#loc"))
        return ("StableHLO text" if is_mlir else "unknown"), "", ""
    data = memoryview(path.read_bytes())
    if is_hlo(data):
        return "XLA HLO protobuf", "", ""
    with contextlib.suppress(UserError):
        export = read_export_file(data, path.name)
        return "jax.export file", f"calling convention {export.convention}", "jax.export"
    return "unknown", "", ""


def _archive_version(path: Path) -> str:
    """The schema version that a .pt2 archive states, "" where it cannot be found."""
    import json
    import zipfile

    with contextlib.suppress(
        zipfile.BadZipFile, NotImplementedError, KeyError, ValueError, TypeError, OSError
    ):
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if "models/" in n and n.endswith(".json")]
            said = json.loads(archive.read(names[0]))["schema_version"] if names else {}
        return f"{said['major']}.{said['minor']}"
    return ""


def _advice(kind: str) -> str:
    if kind == "unknown":
        return (
            "give a .girih bundle, StableHLO, an export of jax.export or torch.export, or XLA's HLO"
        )
    return "export the program again; if its own framework reads the file, please report this"


def _module(findings: Findings, module: Module, compile_too: bool) -> None:
    """What a program needs, and whether this installation can compile it."""
    ops = list(module.walk())
    findings.operations = dict(Counter(op.name for op in ops).most_common())
    if not findings.needs:
        newest = {op.name: op.definition.since for op in ops}
        findings.needs = {f"op:{name}": since for name, since in sorted(newest.items())}
    findings.can["compile"] = True
    with _problem(findings, "compile", "", ""):
        run_pipeline(module, simplify_pipeline(), stop_after="require-static")
    _libraries(findings, {op.name for op in ops})
    if not is_installed("llvmlite"):
        findings.can["compile"] = False
        findings.add("", "llvmlite, which the compiler needs, is not installed", _COMPILER)
    elif compile_too and findings.can["compile"]:
        with _problem(findings, "compile", "", ""):
            compile_program(module)


def _libraries(findings: Findings, names: set[str]) -> None:
    if any(name.startswith("linalg.") for name in names) and not is_installed("scipy"):
        findings.can["compile"] = False
        findings.add(
            "",
            "its matrix factorisations need scipy, which is not installed",
            "pip install 'girih[linalg]'",
        )


@contextlib.contextmanager
def _problem(findings: Findings, ability: str, place: str, remedy: str) -> Iterator[None]:
    """What fails inside is a problem, and the ability is missing."""
    try:
        yield
    except UserError as error:
        findings.can[ability] = False
        findings.add(place, error, remedy)
    except CompilerBug as error:
        findings.can[ability] = False
        findings.add(place, f"a bug in girih: {error}", "please report it with the file")


# Bundles.


def _bundle(findings: Findings, path: Path, compile_too: bool) -> None:
    findings.kind = "girih bundle"
    findings.can = {"read": False, "run": False, "compile": False}
    fresh = "fetch a fresh copy, or compile the program again"
    try:
        bundle = Bundle(path, "lazy")
        findings.version = str(bundle.manifest["version"])
        findings.producer = str(bundle.provenance.get("producer", ""))
    except UserError as error:
        return findings.add("", error, "" if ";" in str(error) else fresh)
    whole = _members(findings, bundle, fresh)
    _program(findings, bundle, fresh, compile_too)
    for target in bundle.manifest.get("variants", []):
        _variant(findings, bundle, str(target["target"]))
    runs = [variant["runs"] for variant in findings.variants]
    anew = findings.can["compile"] and findings.can["read"]
    findings.can["run"] = whole and (any(runs) or anew and bool(runs))
    if not any(runs):
        for variant in findings.variants:
            if "reason" in variant:
                findings.add(f"variants/{variant['target']}", variant["reason"], "")
    if not runs:
        findings.add("", "it holds no compiled variant", f"girih compile {path} -o NEW.girih")


def _members(findings: Findings, bundle: Bundle, remedy: str) -> bool:
    """Compare every member's digest; whether all fit."""
    whole = True
    for name in bundle.members:
        try:
            bundle.member(name)
        except UserError as error:
            whole = False
            findings.add(name, error, remedy)
    with _problem(findings, "run", "seal.json", remedy):
        bundle.is_trusted  # noqa: B018  # reads the seal
    return whole


def _program(findings: Findings, bundle: Bundle, remedy: str, compile_too: bool) -> None:
    able: list[dict[str, bool]] = []
    operations: Counter[str] = Counter()
    for number, name in enumerate(bundle.programs):
        place = f"programs/{name}.pb" if number else "program.pb"
        _one_program(findings, bundle, name, place, remedy, compile_too)
        able.append(dict(findings.can))
        operations.update(findings.operations)
        findings.operations = {}
    findings.can |= {what: all(one[what] for one in able) for what in ("read", "compile")}
    findings.operations = dict(operations.most_common())


def _one_program(
    findings: Findings, bundle: Bundle, entry: str, place: str, remedy: str, compile_too: bool
) -> None:
    """The program of one entry point."""
    with _problem(findings, "read", place, remedy):
        message = read_message(bundle.programs[entry])
        for feature in message.features:
            findings.needs[feature.name] = feature.since
        newer = [f for f, since in findings.needs.items() if _is_newer(since)]
        if newer:
            findings.add(
                place,
                f"it needs format {message.minimum_reader} for {', '.join(newer)}, this girih "
                f"reads up to {FORMAT_VERSION}",
                "install a newer girih, or write the bundle again with an older --format",
            )
            return
        module = decode_module(bundle, entry)
        findings.can["read"] = True
        _module(findings, module, compile_too)


def _is_newer(since: str) -> bool:
    try:
        return version_tuple(since) > version_tuple(FORMAT_VERSION)
    except ValueError:
        return True


def _variant(findings: Findings, bundle: Bundle, target: str) -> None:
    """Whether one compiled variant runs here, and if not, why."""
    place = f"variants/{target}"
    facts: dict[str, Any] = {"target": target, "runs": False}
    findings.variants.append(facts)
    found = len(findings.problems)
    try:
        variant = bundle.variants[target]
        plans = [parse_plan(variant, bundle.label, entry) for entry in bundle.signatures]
        plan = plans[0]
        facts.update(
            triple=variant.triple,
            features=list(variant.features),
            plan_format=plan.format_version,
            native=variant.native,
            trusted=bundle.is_trusted,
            libraries=sorted(
                {name for plan in plans for k in plan.kernels for name in k.functions}
            ),
        )
    except UserError as error:
        return findings.add(place, error, "compile the program again")
    if devices.family(target) not in devices.known_families():
        known = ", ".join(devices.known_families())
        return findings.add(place, f"this girih runs only {known}", "compile it for this machine")
    for check in (check_version, devices.check_machine):
        try:
            for one in plans:
                check(one)
        except UserError as error:
            if check is devices.check_machine and _runs_on_this_cpu(bundle):
                facts["reason"] = str(error)  # no problem where another variant runs
                return
            findings.add(place, error, _anew("girih compile BUNDLE -o NEW.girih"))
    if devices.family(target) == "nvidia" and (reason := _no_gpu(bundle, target)):
        facts["reason"] = reason  # no problem where another variant runs
        return
    for name in facts["libraries"]:
        try:
            address_of(name)
        except UserError as error:
            findings.add(place, error, "pip install 'girih[linalg]'")
    if variant.native and not facts["trusted"]:
        reason = "its machine code was not compiled by this user"
        findings.add(place, reason, _anew("pass --allow-native if you trust where it comes from"))
    facts["runs"] = len(findings.problems) == found


def _runs_on_this_cpu(bundle: Bundle) -> bool:
    """Whether one of the variants for CPUs runs here."""
    return any(family(n) == "cpu" and not lacks(v) for n, v in bundle.variants.items())


def _no_gpu(bundle: Bundle, target: str) -> str:
    """Why no GPU here runs the variant; "" if one does."""
    try:
        choose_variant(bundle, target)
    except UserError as error:
        return str(error).removeprefix(f"{bundle.label}: ")
    return ""


def _anew(otherwise: str) -> str:
    if is_installed("llvmlite"):
        return f"girih load and girih run compile it anew, each time; to avoid that: {otherwise}"
    return f"{otherwise}, or {_COMPILER}"


# Showing.


def diagnose(path: Path, compile_too: bool, as_json: bool) -> int:
    """Print what is known about a file; the exit code."""
    findings = examine(path, compile_too)
    if as_json:
        problems = [problem._asdict() for problem in findings.problems]
        show.print_json({**asdict(findings), "problems": problems, "exit_code": findings.exit_code})
        return findings.exit_code
    rows = [("kind", findings.kind), ("version", findings.version), ("from", findings.producer)]
    if findings.needs:
        newest = max(findings.needs.values(), key=_version_key)
        brought = sorted(f for f, since in findings.needs.items() if since == newest != "1.0")
        more = f" for {', '.join(brought[:6])}" if brought else ""
        rows.append(("program format", f"{newest}{more}; this girih reads {FORMAT_VERSION}"))
    if findings.operations:
        few = ", ".join(f"{count} {name}" for name, count in list(findings.operations.items())[:6])
        rows.append(("operations", f"{sum(findings.operations.values())}: {few}"))
    for variant in findings.variants:
        told = ", ".join([variant.get("triple", ""), *variant.get("features", ())])
        rows.append((f"variant {variant['target']}", told.strip(", ") or "no machine code"))
        if "reason" in variant:
            rows.append(("", f"does not run here: {variant['reason']}"))
    for ability, works in findings.can.items():
        rows.append((f"can {ability}", "yes" if works else "no"))
    show.facts([(name, value) for name, value in rows if value], findings.file)
    for problem in findings.problems:
        place = f"{problem.place}: " if problem.place else ""
        show.console.print(f"problem: {place}{problem.reason}")
        if problem.remedy:
            show.console.print(f"   mend: {problem.remedy}")
    return findings.exit_code


def _version_key(version: str) -> tuple[int, int]:
    try:
        return version_tuple(version)
    except ValueError:
        return (1 << 30, 0)
