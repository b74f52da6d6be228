"""`girih inspect` and `girih verify`."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..hlo.errors import UserError
from ..hlo.signature import Signature
from ..hlo.size_text import parse_dim
from ..hlo.symbols import symbols_of
from ..optimizer.tuning import from_json
from ..runtime.bundle import MAIN, Bundle, Variant
from ..runtime.distributed.layout import layout_of
from ..runtime.loaded import Memory
from ..runtime.loading import choose_variant, load
from ..runtime.plans import parse_plan
from ..runtime.profile import origin_text
from . import show


def inspect_bundle(
    path: Path, kernels: int, members: bool, as_json: bool, rules: bool = False
) -> None:
    """Show a bundle's parts; no code of it is mapped."""
    bundle = Bundle(path, verify="lazy")
    data = describe(bundle)
    if as_json:
        return show.print_json(data)
    show.facts(
        (
            ("size", show.size(data["bytes"])),
            ("format", data["format"]),
            ("producer", data["provenance"].get("producer", "")),
            (
                "sealed by you",
                "yes" if data["trusted"] else "no: machine code needs --allow-native",
            ),
            ("digest", data["digest"]),
            ("weights", f"{data['weights']['count']}, {show.size(data['weights']['bytes'])}"),
            ("golden cases", data["checks"]),
        ),
        title=str(path),
    )
    for name, signature in data["entries"].items():
        rows = [("argument", *row) for row in signature["arguments"]]
        rows += [("result", *row) for row in signature["results"]]
        show.table(("", "name", "type", ""), rows, title=f"\nentry point {name}")
        if sizes := signature["sizes"]:
            rows = [(n, s["values"], ", ".join(s["dims"]), s["origin"]) for n, s in sizes.items()]
            rows += [("", text, "", origin) for text, origin in signature["constraints"]]
            show.table(("size", "values", "is", "said by"), rows, title="\nsizes of a call")
    for target, variant in data["variants"].items():
        _show_variant(target, variant, kernels)
    _show_rules(data["provenance"].get("rewrites"), None if rules else kernels)
    if len(data["variants"]) > 1 or data["runs"]["target"] is None:
        runs = data["runs"]
        here = f"{runs['target']} runs here" if runs["target"] else "nothing runs here"
        show.console.print(f"\n{here}: {runs['reason']}")
    tuned = data["tuning"]
    if tuned:
        listed = sorted(tuned.values(), key=lambda entry: -entry["measured"])[:kernels]
        rows = [
            (e["kernel"], show.time(e["predicted"] * 1e6), show.time(e["measured"] * 1e6),
             _choice_text(e["choice"]), e["machine"])
            for e in listed
        ]  # fmt: skip
        show.table(
            ("kernel", ">predicted", ">measured", "choice", "machine"),
            rows,
            title=f"\n{len(rows)} of {len(tuned)} measured choices, the slowest first",
        )
    if members:
        show.table(
            ("member", ">size"),
            [(name, show.size(size)) for name, size in data["members"].items()],
            title="\nmembers",
        )


def _show_variant(target: str, variant: dict[str, Any], kernels: int) -> None:
    plans = variant.get("entries", {MAIN: variant})
    cubins = [f"{name} {show.size(size)}" for name, size in variant["cubins"].items()]
    facts = [
        ("code", f"{show.size(variant['image_bytes'])} {variant['triple']}"),
        ("machine code for", ", ".join(cubins)),
        ("features", " ".join(variant["features"]) or "none"),
    ]
    facts = [(name, fact) for name, fact in facts if fact != ""]
    alone = "entries" not in variant
    facts += _plan_facts(variant) if alone else []
    show.facts(facts, title=f"\nvariant {target}")
    if layout := variant["layout"]:
        rows = [
            (what, name, lies)
            for what in ("argument", "result")
            for name, lies in layout[f"{what}s"].items()
        ]
        show.table(("", "name", "how it lies"), rows, title=f"\non the mesh {layout['mesh']}")
    for name, plan in plans.items():
        if not alone:
            show.facts(_plan_facts(plan), title=f"\n{target}, entry point {name}")
        _show_plans(plan)
        _show_kernels(plan, kernels)


def _show_plans(plan: dict[str, Any]) -> None:
    """For which sizes there are which plans, where calls decide sizes."""
    every = [plan, *plan["others"]]
    if not plan["formulas"] and len(every) == 1:
        return
    rows = [
        (number, " and ".join(one["guards"]) or "all sizes", len(one["kernels"]), one["steps"],
         show.size(one["memory"]["arena_bytes"]))
        for number, one in enumerate(every)
    ]  # fmt: skip
    show.table(
        ("plan", "for", ">kernels", ">steps", ">arena at most"),
        rows,
        title="\nplans, of which a call takes the first that is for its sizes",
    )
    for number, one in enumerate(every[1:], 1):
        for note in one["notes"]:
            show.console.print(f"note: plan {number}: {note}")


def _plan_facts(plan: dict[str, Any]) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [("steps", plan["steps"])]
    facts += [(name.replace("_", " "), show.size(v)) for name, v in plan["memory"].items()]
    order = plan["order"]
    if order["proof"]:
        facts.append(("order", _order_text(order)))
    if prices := plan["schedules"]:
        said = ", ".join(f"{show.time(one['seconds'] * 1e6)} {one['schedule']}" for one in prices)
        facts.append(("schedule", f"{plan['schedule']}; predicted: {said}"))
    return facts


def _show_kernels(plan: dict[str, Any], kernels: int) -> None:
    """The largest kernels of a plan, their launches, and its notes."""
    listed = sorted(plan["kernels"], key=lambda k: -max(k["flops"], k["bytes"]))[:kernels]
    if listed:
        rows = [
            (k["name"], k["kind"], k["runs"], f"{k['flops'] / 1e6:.3g}", show.size(k["bytes"]),
             _operations(k["ops"]), k["origin"])
            for k in listed
        ]  # fmt: skip
        total = len(plan["kernels"])
        show.table(
            ("kernel", "kind", ">steps", ">Mflop", ">bytes", "operations", "source"),
            rows,
            title=f"\n{len(rows)} of {total} kernels, the largest first",
        )
    launched = [k for k in listed if k["launches"]]
    if launched:
        show.table(
            ("kernel", ">blocks", ">threads", ">cluster", ">shared", "arguments"),
            [(k["name"], *_launch_row(launch)) for k in launched for launch in k["launches"]],
            title="\ntheir launches",
        )
    for note in plan["notes"]:
        show.console.print(f"note: {note}")
    for kernel in plan["kernels"]:
        for note in kernel["notes"]:
            show.console.print(f"note: {kernel['name']}: {note}")
        if kernel["approximate"]:
            words = ", ".join(kernel["approximate"])
            show.console.print(f"may be approximate: {words} in {kernel['name']}")


def _order_text(order: dict[str, Any]) -> str:
    """What is known of the order of the steps: `any needs 1.0 MB, this 2.0 % more: ...`."""
    bound, gap = order["bound_bytes"], order["gap_bytes"]
    more = f"{100 * gap / bound:.2g} % more" if bound else show.size(gap)
    return f"any needs {show.size(bound)}, this {more if gap else 'no more'}: {order['proof']}"


def _launch_row(launch: dict[str, Any]) -> tuple[str, ...]:
    extents = ("x".join(map(str, launch[name])) for name in ("grid", "block", "cluster"))
    return *extents, show.size(launch["shared_bytes"]), " ".join(launch["arguments"])


def _operations(names: list[str]) -> str:
    """What a kernel computes, in a few words: `reduce subtract exponential x2 ...`."""
    counts = {name: names.count(name) for name in names if name != "constant"}
    shown = [f"{name} x{count}" if count > 1 else name for name, count in counts.items()]
    return " ".join(shown[:4]) + (" ..." if len(shown) > 4 else "")


def _show_rules(rewrites: Any, most: int | None) -> None:
    """What rewrote the program, most hits first, at most so many, and under which licences;
    UserError where the document is malformed."""
    if rewrites is None:
        show.console.print("\nthe bundle does not say which rules rewrote its program")
        return
    try:
        rows = [
            (str(name), int(rule["hits"]), ", ".join(map(os.path.basename, rule["lines"])))
            for name, rule in rewrites["rules"].items()
        ]
        used = rewrites["licences"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"provenance.json: its rewrites are malformed ({error!r})") from error
    listed = sorted(rows, key=lambda row: (-row[1], row[0]))[:most]
    title = f"\n{len(listed)} of {len(rows)} rules and passes that rewrote operations, by hits; "
    show.table(("rule", ">hits", "lines"), listed, title=f"{title}licences used: {used}")


def _choice_text(choice: dict[str, Any]) -> str:
    """A choice in few words: `rows=14 vectors=2 pack_left`."""
    words = [
        f"{name}={value}" if value is not True else name
        for name, value in choice.items()
        if value is not False
    ]
    return " ".join(words).replace(", ", ",")


def describe(bundle: Bundle) -> dict[str, Any]:
    """All that inspect shows, as JSON values."""
    stored = {array.__array_interface__["data"][0]: array for array in bundle.weights.values()}
    return {
        "bundle": bundle.label,
        "bytes": bundle.size,
        "format": bundle.manifest["version"],
        "features": [feature["name"] for feature in bundle.manifest.get("features", [])],
        "digest": bundle.digest,
        "trusted": bundle.is_trusted,
        "provenance": dict(bundle.provenance),
        "weights": {
            "count": len(bundle.weights),
            "bytes": sum(array.nbytes for array in stored.values()),
        },
        "checks": len(bundle.checks),
        "entries": {
            name: {
                "arguments": [_argument_row(argument) for argument in signature.arguments],
                "results": [_result_row(result, signature) for result in signature.results],
                **_describe_sizes(signature),
            }
            for name, signature in bundle.signatures.items()
        },
        "variants": {target: _describe_variant(bundle, target) for target in bundle.variants},
        "runs": _runs(bundle),
        "tuning": dict(_tuning(bundle)),
        "members": dict(bundle.members),
    }


def _runs(bundle: Bundle) -> dict[str, str | None]:
    """The variant that `girih run` takes on this machine, and why."""
    try:
        choice = choose_variant(bundle)
    except UserError as error:
        return {"target": None, "reason": str(error).removeprefix(f"{bundle.label}: ")}
    if choice.problem:
        return {"target": None, "reason": choice.problem}
    return {"target": choice.target, "reason": choice.reason}


def _tuning(bundle: Bundle) -> dict[str, Any]:
    """The bundle's measured choices by digest."""
    if bundle.tuning is None:
        return {}

    return from_json(bundle.tuning, bundle.label).to_json()["kernels"]


def _argument_row(argument: Any) -> tuple[str, str, str]:
    remarks = ["donated"] if argument.donated and argument.state is None else []
    if argument.state is not None:
        remarks.append("state, which a session keeps")
    elif argument.aliases is not None:
        remarks.append(f"becomes result {argument.aliases}")
    if argument.given is not None:
        remarks.append(f"{argument.given} is converted")
    if argument.default is not None:
        remarks.append(f"default {argument.default}")
    kind = str(argument).removeprefix(f"{argument.path}: ")
    return argument.path, kind, ", ".join(remarks)


def _describe_sizes(signature: Signature) -> dict[str, Any]:
    """The sizes that a call decides: what they may be, which dimensions tell them, who says so."""
    dims = {
        f"{argument.path}.{axis}": str(dim)
        for argument in signature.arguments
        for axis, dim in enumerate(argument.dims)
    }
    return {
        "sizes": {
            name: {
                "values": str(said),
                "dims": [place for place, dim in dims.items() if dim == name],
                "origin": said.origin,
            }
            for name, said in signature.symbols
            if any(name in symbols_of(parse_dim(dim)) for dim in dims.values())
        },
        "constraints": [(str(one), one.origin) for one in signature.constraints],
    }


def _result_row(result: Any, signature: Any) -> tuple[str, str, str]:
    remarks = ["state"] if result.state else []
    names = {name for dim in result.dims for name in symbols_of(parse_dim(str(dim)))}
    for one in signature.measured:
        if one.size in names:
            remarks.append(f"data decide {one.size} <= {one.bound}")
    return result.path, str(result).removeprefix(f"{result.path}: "), ", ".join(remarks)


def _describe_variant(bundle: Bundle, target: str) -> dict[str, Any]:
    """A variant, with its plan, or, where there are several entry points, the plan of each."""
    variant = bundle.variants[target]
    plans = {
        name: _describe_plan(parse_plan(variant, bundle.label, name)) for name in bundle.signatures
    }
    return {
        "native": variant.native,
        "triple": variant.triple,
        "features": list(variant.features),
        "layout": _describe_layout(bundle, variant),
        "image_bytes": len(variant.image),
        "cubins": {name: len(code) for name, code in sorted(variant.cubins.items())},
        "weight_bytes": sum(array.nbytes for array in variant.weights.values()),
        **(plans[MAIN] if list(plans) == [MAIN] else {"entries": plans}),
    }


def _describe_plan(plan: Any) -> dict[str, Any]:
    runs: dict[int, list[Any]] = {}
    for step in plan.steps:
        if step.WhichOneof("action") == "run":
            runs.setdefault(step.run.kernel, []).append(step.run)
    return {
        "steps": len(plan.steps),
        "memory": {name: getattr(plan.memory, name) for name in _stored_bytes(plan)},
        "order": {
            "bound_bytes": plan.memory.order_bound_bytes,
            "gap_bytes": max(plan.memory.lower_bound_bytes - plan.memory.order_bound_bytes, 0),
            "proof": plan.memory.order_proof,
        },
        "kernels": [
            {
                "name": kernel.name,
                "kind": kernel.kind,
                "engine": kernel.engine,
                "ops": list(kernel.ops),
                "origin": origin_text(kernel),
                "runs": len(runs.get(index, ())),
                "flops": sum(run.flops for run in runs.get(index, ())),
                "bytes": sum(run.bytes for run in runs.get(index, ())),
                "notes": list(kernel.notes),
                "approximate": list(kernel.approximate),
                "launches": [_describe_launch(launch) for launch in kernel.launches],
            }
            for index, kernel in enumerate(plan.kernels)
        ],
        "schedule": plan.schedule or ("merged" if plan.merges else "host"),
        "schedules": [{"schedule": one.schedule, "seconds": one.seconds} for one in plan.prices],
        "notes": list(plan.notes),
        "guards": [one.text for one in plan.guards],
        "formulas": list(plan.formulas),
        "others": [_describe_plan(one) for one in plan.others],
    }


def _describe_layout(bundle: Bundle, variant: Variant) -> dict[str, Any] | None:
    """How arguments and results of code for several devices lie, by their paths."""
    if variant.layout is None:
        return None
    layout, signature = layout_of(variant), next(iter(bundle.signatures.values()))
    pairs = {
        "arguments": (signature.arguments, layout.arguments),
        "results": (signature.results, layout.results),
    }
    layout.signature(signature)  # is an error where it is none of this signature
    return {
        "mesh": ",".join(f"{name}={size}" for name, size in layout.mesh.axes),
        **{
            what: {one.path: str(lies) for one, lies in zip(*pair, strict=True)}
            for what, pair in pairs.items()
        },
    }


def _stored_bytes(plan: Any) -> list[str]:
    """The names of `Memory` that a plan stores; the others follow from it."""
    names = plan.memory.DESCRIPTOR.fields_by_name
    return [field.name for field in fields(Memory) if field.name in names]


def _describe_launch(launch: Any) -> dict[str, Any]:
    arguments = []
    for argument in launch.arguments:
        kind = argument.WhichOneof("value")
        memory = argument.memory if kind == "memory" else argument.tensor_map.memory
        place = "scratch" if memory.scratch else f"argument {memory.slot}"
        arguments.append({"tensor_map": f"box of {place}", "memory": place}.get(kind, "number"))
    return {
        "entry": launch.entry,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster) or [1, 1, 1],
        "shared_bytes": launch.shared_bytes,
        "arguments": arguments,
    }


def verify_bundle(path: Path, run: bool, simulate: bool, allow_native: bool, as_json: bool) -> None:
    """Check all digests and documents, then the golden cases."""
    bundle = Bundle(path)
    count = bundle.verify_all()
    cases: list[tuple[float, float]] = []
    if run and bundle.checks:
        program = load(path, simulate=simulate, allow_native=allow_native)
        show.speaks_for_all(program)
        cases = program.run_checks()
    failed = [i for i, (error, tolerance) in enumerate(cases) if not error <= tolerance]
    if as_json:
        show.print_json(
            {
                "bundle": str(path),
                "members": count,
                "digest": bundle.digest,
                "trusted": bundle.is_trusted,
                "cases": [{"error": error, "tolerance": limit} for error, limit in cases],
                "passed": not failed,
            }
        )
    if failed:
        error, tolerance = cases[failed[0]]
        raise UserError(
            f"{path}: golden case {failed[0]} differs by {error:.3g} of its largest value, more "
            f"than {tolerance:.3g}; {len(failed)} of {len(cases)} cases fail on this machine"
        )
    if not as_json:
        golden = f", {len(cases)} golden case{'s' * (len(cases) > 1)}" if cases else ""
        show.console.print(f"{path}: whole ({count} members{golden})")
