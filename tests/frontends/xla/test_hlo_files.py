"""The files themselves: what is detected, what they say besides operations, and bad ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import girih
from girih.frontends.source import read_source
from girih.frontends.xla import is_hlo, read_hlo, read_program
from girih.frontends.xla.devices import iota_groups, mesh_groups
from girih.frontends.xla.wire import Damaged, varints
from girih.hlo.errors import UserError
from girih.hlo.interpret import interpret
from girih.hlo.verify import verify

from . import reference
from .compare import differences

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "readers" / "hlo"
TEXTS = sorted(SAMPLES.glob("*.hlo"))
PROTOS = sorted(SAMPLES.glob("*.pb"))


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    out, size = bytearray([number << 3 | 2]), len(data)
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + data


@pytest.mark.parametrize("path", [*TEXTS, *PROTOS], ids=lambda path: path.name)
def test_samples_are_read_and_run(path: Path) -> None:
    module = read_source(path)
    verify(module)
    inputs = [np.ones(v.dims, v.tensor.dtype) for v in module.body.arguments]
    results = interpret(module, inputs)
    assert len(results) == len(module.body.results)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_text_and_protobuf_say_the_same(path: Path) -> None:
    text = path.read_text()
    data = reference.protobuf_of(text)
    assert not differences(read_program(text), read_program(data))


def test_the_readers_need_no_framework() -> None:
    code = (
        "import sys; from girih.frontends.source import read_source; read_source(sys.argv[1]); "
        "assert not {'jax', 'jaxlib', 'torch', 'tensorflow'} & set(sys.modules), sys.modules.keys()"
    )
    for path in (TEXTS[0], PROTOS[0]):
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_wrapped_modules() -> None:
    module = (SAMPLES / "step.hlo.pb").read_bytes()
    proto = field(1, module) + field(3, b"")
    snapshot = field(1, proto) + field(4, b"Host")
    for data in (proto, snapshot):
        assert is_hlo(data)
        assert not differences(read_program(data), read_program(module))


def test_a_text_is_known_by_its_first_word() -> None:
    text = (SAMPLES / "opcodes.hlo").read_text()
    assert is_hlo(b"// dumped\n/* by hand */ " + text.encode())
    assert read_source("// a note\n" + text).entry == "main"
    assert not is_hlo(b"module { }") and not is_hlo(b"") and not is_hlo(b"\x0a\x03abc")


def test_names_donation_locations_and_shardings() -> None:
    module = read_hlo((SAMPLES / "opcodes.hlo").read_text())
    assert module.signature is not None
    arguments = module.signature.arguments
    assert [a.path for a in arguments] == ["params['w']", "ids", "rest[0]", "rest[1]"]
    assert [(a.donated, a.aliases) for a in arguments] == [(True, 0)] + [(False, None)] * 3
    assert [r.path for r in module.signature.results][6:8] == ["output[6][0]", "output[6][1]"]
    assert str(module.body.arguments[0].tensor.sharding) == '<@gspmd, [{"axis1"}, {}]>'
    (loop,) = [op for op in module.body.ops if op.name == "while"]
    assert (loop.origin[0].file, loop.origin[0].line) == ("/home/user/model.py", 41)


def test_a_function_in_the_form_of_tensorflow() -> None:
    module = read_source(SAMPLES / "tensorflow_form.hlo.pb")
    assert module.signature is not None
    assert [a.path for a in module.signature.arguments] == ["arg0", "arg1", "arg2"]
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3), (3, 4), (4,)))
    logits = np.exp(x @ w + b)
    wanted = logits / logits.sum(axis=1, keepdims=True)
    (found,) = girih.compile(module)(x, w, b)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    places = {origin.file for op in module.body.ops for origin in op.origin}
    assert "/home/user/predict.py" in places


# Bad files


def test_a_cut_protobuf_is_refused_at_every_byte() -> None:
    data = (SAMPLES / "tensorflow_form.hlo.pb").read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(UserError):
            module = read_source(data[:size])
            verify(module)
            raise UserError("the cut fell between two fields")


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("parameter(0)", "parameter(7)"), "parameters of f are not numbered"),
        (("add(p, q)", "add(p, r)"), "'r' is not defined here"),
        (("q = f32[2] c", "p = f32[2] c"), "a second instruction is named p"),
        (("add(p, q)", "add(p, q), wings=2"), "attribute 'wings' is not known"),
        (("f32[2] add", "f99[2] add"), "expected an operation"),
        (("f32[2] add", "f32[-2] add"), "expected|dimension"),
        (("constant({1, 2})", "constant({1, 2, 3})"), "has 3 numbers"),
        (("constant({1, 2})", "constant({1, 1e99})"), "does not fit f32"),
        (("constant({1, 2})", "constant({1, two})"), "'two' is no number"),
        (("to_apply=f", "to_apply=g"), "the computation 'g' is not defined before"),
        (("f32[2] call(q)", "f32[3] call(q)"), r"f gives f32\[2\], not f32\[3\]"),
        (("f32[2] call(q)", "f32[2] call(q, q)"), "f takes"),
        (("index=0", "index=9"), "element 9"),
        (("get-tuple-element(pair)", "get-tuple-element()"), "lacks an operand"),
        (("{0}: (0, {}", "{5}: (0, {}"), "input_output_alias names"),
    ],
)
def test_the_error_says_what_is_wrong(change: tuple[str, str], wanted: str) -> None:
    text = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }
    f { x = f32[2] parameter(0)
      ROOT n = f32[2] negate(x) }
    ENTRY e {
      p = f32[2] parameter(0)
      q = f32[2] constant({1, 2})
      s = f32[2] add(p, q)
      c = f32[2] call(q), to_apply=f
      pair = (f32[2], f32[2]) tuple(s, c)
      first = f32[2] get-tuple-element(pair), index=0
      ROOT t = (f32[2], f32[2]) tuple(first, c)
    }"""
    verify(read_hlo(text))
    with pytest.raises(UserError, match=wanted):
        read_hlo(text.replace(*change))


def test_metadata_of_another_type_is_no_name() -> None:
    text = "HloModule m\nENTRY e { ROOT p = f32[] parameter(0), metadata={op_name=7} }"
    module = read_hlo(text)
    assert module.signature is not None and module.signature.names == ("p",)


def test_shardings_are_spelled_in_one_way() -> None:
    text = """HloModule m
    ENTRY e {
      p = f32[4,4] parameter(0), sharding={devices=[1,2,2]0, 1,
        2,3 last_tile_dim_replicate metadata={op_name="x"}}
      q = f32[4] parameter(1), sharding={mesh['a'=2,'b'=4], [{'a', ?}], replicated={'b'}}
      ROOT t = (f32[4,4], f32[4]) tuple(p, q),
        sharding={{maximal device=1}, /*index=1*/{replicated}}
    }"""
    spelled = [
        "{devices=[1,2,2]0,1,2,3 last_tile_dim_replicate}",
        "{mesh['a'=2,'b'=4], [{'a', ?}], replicated={'b'}}",
        "{{maximal device=1}, {replicated}}",
    ]
    for source in (text, reference.protobuf_of(text)):
        entry = read_program(source).entry
        found = [value.attributes["sharding"] for value in (*entry.parameters, entry.root)]
        assert found[1:] == spelled[1:]
        assert found[0] in (spelled[0], "{devices=[1,2,2]<=[4] last_tile_dim_replicate}")


def test_short_files_of_endless_programs_are_refused() -> None:
    doubled = ["c0 { x = f32[] parameter(0)\n ROOT y = f32[] negate(x) }"]
    for number in range(1, 40):
        doubled.append(
            f"c{number} {{ x = f32[] parameter(0)\n"
            f"y = f32[] fusion(x), kind=kLoop, calls=c{number - 1}\n"
            f"ROOT z = f32[] fusion(y), kind=kLoop, calls=c{number - 1} }}"
        )
    entry = "ENTRY e { x = f32[] parameter(0)\n ROOT y = f32[] call(x), to_apply=c39 }"
    with pytest.raises(UserError, match="too many"):
        read_hlo("\n".join(["HloModule m", *doubled, entry]))


def test_depths_and_counts_have_bounds() -> None:
    deep = "HloModule m\nENTRY e { p = " + "(" * 5000 + "f32[]" + ")" * 5000 + " parameter(0) }"
    nested = "HloModule m\nENTRY e { p = f32[] parameter(0)\n ROOT r = f32[] " + "negate(" * 5000
    chain = ["HloModule m", "c0 { x = f32[] parameter(0)\n ROOT y = f32[] negate(x) }"] + [
        f"c{n} {{ x = f32[] parameter(0)\n ROOT y = f32[] call(x), to_apply=c{n - 1} }}"
        for n in range(1, 300)
    ]
    huge = "HloModule m\nENTRY e { ROOT c = f32[99999999999,99999999999] parameter(0) }"
    digits = "HloModule m\nENTRY e { ROOT p = f32[] parameter(" + "1" * 6000 + ") }"
    for text in (deep, nested, "\n".join(chain), huge, digits):
        with pytest.raises(UserError):
            read_hlo(text)


def test_groups_of_devices_have_bounds() -> None:
    for call in (
        lambda: iota_groups((1 << 40, 2), (1 << 41,), ()),
        lambda: iota_groups((2, 2), (2, 2), (0, 0)),
        lambda: iota_groups((2, 3), (5,), ()),
        lambda: mesh_groups({"axes": [{"name": "x", "size": 1 << 50}]}, [{}]),
        lambda: mesh_groups({"axes": [{"name": "x", "size": 4}]}, [{"mesh_axis_index": 3}]),
    ):
        with pytest.raises(ValueError):
            call()


def test_lists_of_numbers() -> None:
    numbers = [0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1]
    data = bytearray()
    for number in numbers:
        while number >= 128:
            data.append(number & 127 | 128)
            number >>= 7
        data.append(number)
    assert varints([memoryview(bytes(data)), 5]).tolist() == [*numbers, 5]
    for bad in (b"\x80", b"\x80" * 11 + b"\x01"):
        with pytest.raises(Damaged):
            varints([memoryview(bad)])


def test_shapes_that_the_operands_tell() -> None:
    text = """HloModule m
    add { x = f32[] parameter(0)
      y = f32[] parameter(1)
      ROOT s = add(x, y) }
    ENTRY e {
      p = f32[4,6] parameter(0)
      zero = f32[] constant(0)
      a = concatenate(p, negate(p)), dimensions={1}
      b = reduce(a, zero), dimensions={0}, to_apply=add
      c = dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      d = pad(p, zero), padding=1_1_1x0_2
      f = reduce-window(p, zero), window={size=2x3 stride=2x1 pad=0_0x1_1}, to_apply=add
      g = f32[2,6] slice(p), slice={[1:4:2], [0:6]}
      h = transpose(g), dimensions={1,0}
      i = compare(p, p), direction=LT
      image = f32[2,8,8,3] parameter(1)
      kernel = f32[3,3,3,4] parameter(2)
      j = convolution(image, kernel), window={size=3x3 stride=2x1 pad=1_0x0_0},
        dim_labels=b01f_01io->b01f
      ROOT t = tuple(a, b, c, d, f, h, i, j)
    }"""
    assert str(read_program(text).entry.root.shape) == (
        "(f32[4,12], f32[12], f32[4,4], f32[9,8], f32[2,6], f32[6,2], pred[4,6], f32[2,4,6,4])"
    )
    assert not differences(read_program(text), read_program(reference.protobuf_of(text)))
