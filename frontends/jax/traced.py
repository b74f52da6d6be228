"""A JAX function with example inputs becomes a module: traced here, closed-over arrays as weights.

The one part of this frontend that needs jax.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...hlo.errors import UserError
from ...hlo.graph import Module, Weight
from ...hlo.signature import Signature
from ...hlo.trees import StructureError, Tree
from ...hlo.types import element_type_of
from ..kernel.jax_primitive import importing
from ..stablehlo.convert import WEIGHT_BYTES, Converter, EntryArgument
from ..stablehlo.signatures import donations, parameter_count, parameter_names, typed
from ..stablehlo.text import read_text
from ..user_line import hide_our_frames, user_line
from .exported import Abstract, Export, import_export
from .trees import tree_of


def import_function(function: Any, examples: Sequence[Any], keywords: Mapping[str, Any]) -> Module:
    """The module of `function(*examples, **keywords)`.

    `function` may be jitted (its donations and static arguments count) or plain; examples may be
    arrays, pytrees of arrays or `jax.ShapeDtypeStruct`. UserError where JAX cannot trace it.
    """
    import jax

    is_jitted = hasattr(function, "trace") and hasattr(function, "lower")
    jitted = function if is_jitted else jax.jit(function)
    traced = trace(jitted, examples, keywords)
    module = _with_static(import_traced(traced, title_of(function)), jitted, examples, keywords)
    return _with_conversions(module, jitted, examples, keywords)


def _with_static(
    module: Module, jitted: Any, examples: Sequence[Any], keywords: Mapping[str, Any]
) -> Module:
    """The module, whose signature has numbers and texts that are static arguments as constants in
    their places; as it is where there are others, or nobody can tell where they stand."""
    signature = module.signature
    assert signature is not None
    free, named = signature.inputs.children, signature.keywords
    missing = {key: value for key, value in keywords.items() if key not in named.keys}
    parameters = inspect.signature(jitted).parameters.values() if len(examples) > len(free) else ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds][: len(examples)] or signature.names
    children = dict(zip(signature.names, free, strict=False))
    places = [name for name in names if name not in children]
    if len(names) != len(examples) or len(children) != len(free):
        places = []
    static = [value for name, value in zip(names, examples, strict=False) if name in places]
    if not (places or missing) or len(places) != len(examples) - len(free):
        return module
    if any(type(value) not in (bool, int, float, str) for value in (*static, *missing.values())):
        return module
    constants = dict(zip(places, map(Tree.constant, static), strict=True))
    inputs = [children[name] if name in children else constants[name] for name in names]
    own = dict(zip(named.keys, named.children, strict=True))
    signature = replace(
        signature,
        inputs=Tree.tuple_of(*(inputs if places else free)),
        names=tuple(names),
        keywords=Tree.dict_of({**own, **{k: Tree.constant(v) for k, v in missing.items()}}),
    )
    return replace(module, signature=signature)


def _with_conversions(
    module: Module, jitted: Any, examples: Sequence[Any], keywords: Mapping[str, Any]
) -> Module:
    """The module, whose signature says which types of the examples JAX converts on its own, as it
    does where 64-bit types are off."""
    signature = module.signature
    assert signature is not None
    leaves = _dynamic_leaves(signature, jitted, examples, keywords)
    arguments, notes = list(signature.arguments), []
    for number, (argument, leaf) in enumerate(zip(arguments, leaves, strict=False)):
        if isinstance(leaf, (np.ndarray, np.generic)) and argument.key is None:
            given = element_type_of(leaf.dtype).name
            if given != argument.element:
                arguments[number] = replace(argument, given=given)
                notes.append(
                    f"input '{argument.path}' is {given} in the example, which JAX takes as "
                    f"{argument.element}: arrays of {given} are converted at each call"
                )
    if not notes:
        return module
    signature = replace(signature, arguments=tuple(arguments))
    return replace(module, signature=signature).with_notes(*notes)


def _dynamic_leaves(
    signature: Signature, jitted: Any, examples: Sequence[Any], keywords: Mapping[str, Any]
) -> list[Any]:
    """The leaves of the examples without static arguments, which the signature does not have; none
    where a variadic function does not tell which of its arguments are static."""
    try:
        return signature.flatten(examples, keywords)
    except StructureError:
        given = inspect.signature(jitted).bind(*examples, **keywords).arguments
        named = {name: keywords[name] for name in map(str, signature.keywords.keys)}
        if len(signature.names) != len(signature.inputs.children):
            return []
        return signature.flatten([given[name] for name in signature.names], named)


def title_of(function: Any) -> str:
    """What a function is called in messages and modules."""
    return getattr(function, "__name__", "") or type(function).__name__


def trace(jitted: Any, examples: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The `jax.stages.Traced` of a jitted function; UserError, with the user's line, where JAX
    cannot trace it."""
    hide_our_frames()
    try:
        return jitted.trace(*examples, **keywords)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        title = title_of(jitted)
        raise UserError(f"{user_line(error)}JAX could not trace '{title}': {reason}") from error


def import_traced(traced: Any, title: str) -> Module:
    """The module of a `jax.stages.Traced`."""
    import jax

    closed = traced.jaxpr
    donated = [leaf.donated for leaf in jax.tree_util.tree_leaves(traced.args_info)]
    large = [_is_large(constant) for constant in closed.consts]
    lifted = itertools.compress(closed.consts, large)
    weights = [Weight(f"constant_{number}", np.asarray(c)) for number, c in enumerate(lifted)]
    text = _lower(closed, large, [weight.array for weight in weights], donated, title)
    document = read_text(text, title)
    entry = [EntryArgument(weight=weight) for weight in weights]
    entry += [EntryArgument(index=index) for index in range(len(donated))]
    entry = [EntryArgument()] * (parameter_count(document) - len(entry)) + entry
    prefix = "constant" if not weights else "inner_constant"
    module = Converter(document, title, prefix, entry).module()
    return replace(module, signature=_signature(module, traced, closed, donated))


def import_open(jitted: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Module:
    """The module of a jitted function of `jax.ShapeDtypeStruct`s, some of whose sizes are symbols
    of `jax.export`; UserError, with the user's line, where JAX cannot export it."""
    from jax import export

    hide_our_frames()
    with importing():
        try:
            exported = export.export(jitted, platforms=("cpu",))(*arguments, **keywords)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            title = title_of(jitted)
            raise UserError(
                f"{user_line(error)}JAX could not export '{title}': {reason}"
            ) from error
    return import_export(export_of(exported), "", (), {})


def _is_large(constant: Any) -> bool:
    """Whether a closed-over array becomes a weight: as a `constant` in the program would."""
    shape, dtype = getattr(constant, "shape", None), getattr(constant, "dtype", None)
    if shape is None or dtype is None or not isinstance(dtype, np.dtype):
        return False
    return int(np.prod(shape)) * dtype.itemsize >= WEIGHT_BYTES


def _lower(
    closed: Any, large: Sequence[bool], arrays: Sequence[Any], donated: Sequence[bool], name: str
) -> str:
    """StableHLO text, with locations, of the function that takes its large constants first."""
    import jax
    from jax.core import eval_jaxpr

    jaxpr, constants = closed.jaxpr, closed.consts

    def lifted(*inputs: Any) -> Any:
        given = iter(inputs)
        values = [next(given) if big else c for c, big in zip(constants, large, strict=True)]
        return eval_jaxpr(jaxpr, values, *given)

    lifted.__name__ = name if name.isidentifier() else "main"
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    shapes += [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
        for aval in closed.in_avals
    ]
    numbers = tuple(len(arrays) + index for index, flag in enumerate(donated) if flag)
    jitted = jax.jit(lifted, donate_argnums=numbers, keep_unused=True)
    with warnings.catch_warnings(), importing():
        # A donation that no result can use is the caller's choice, and harmless here.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = jitted.trace(*shapes).lower(lowering_platforms=("cpu",))
    module: Any = lowered.compiler_ir("stablehlo")
    return module.operation.get_asm(enable_debug_info=True)


def _signature(module: Module, traced: Any, closed: Any, donated: Sequence[bool]) -> Signature:
    """Trees and names as the user's function has them, and its donations."""
    tree = tree_of(traced.in_tree)
    positional, keywords = tree.children
    body = module.body
    leaf_names = getattr(getattr(closed.jaxpr, "debug_info", None), "arg_names", None) or ()
    signature = Signature.build(
        positional,
        [typed(kind) for kind in body.argument_types],
        tree_of(traced.out_tree),
        [typed(kind) for kind in body.result_types],
        names=parameter_names(positional, [str(leaf or "") for leaf in leaf_names]),
        keywords=keywords,
    )
    aliases = donations(module.main)
    signature = signature.donating(
        {index: aliases.get(index) for index, flag in enumerate(donated) if flag}
    )
    given = zip(signature.arguments, closed.in_avals, strict=True)
    gives = zip(signature.results, closed.out_avals, strict=True)
    return replace(
        signature,
        arguments=tuple(replace(a, key=_key_kind(aval)) for a, aval in given),
        results=tuple(replace(r, key=_key_kind(aval)) for r, aval in gives),
    )


def _key_kind(aval: Any) -> str | None:
    """The kind of a random key, "threefry2x32"; None for other values."""
    name = getattr(getattr(aval.dtype, "_impl", None), "name", None)
    return name if str(aval.dtype).startswith("key<") else None


def export_of(exported: Any) -> Export:
    """The parts of a `jax.export.Exported` object."""

    def values(avals: Sequence[Any]) -> tuple[Abstract, ...]:
        return tuple(Abstract(tuple(map(str, a.shape)), _element_name(a.dtype)) for a in avals)

    return Export(
        exported.fun_name,
        exported.mlir_module_serialized,
        tree_of(exported.in_tree),
        tree_of(exported.out_tree),
        values(exported.in_avals),
        values(exported.out_avals),
        tuple(exported.module_kept_var_idx),
        tuple(exported.platforms),
        exported.nr_devices,
        len(exported.ordered_effects),
        exported.calling_convention_version,
    )


def _element_name(dtype: Any) -> str:
    try:
        return element_type_of(dtype).name
    except (TypeError, ValueError):
        return str(dtype)
