"""Damages programs without losing their form: `MUTATORS[kind](rng, data, others) -> bytes`.

A mutator gets one seed, and others of its kind to take pieces from. Most mutants are a step or two
from a legal program, so that they come past the first checks of a reader.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]

LARGEST = 1 << 19  # bytes of a mutant
LIMITS = (
    0, 1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 255, 256, 1023, 32767, 32768, 65535, 65536, 2**31 - 1,
    2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
_REPEATS = (2, 2, 2, 3, 3, 10, 10, 60, 70, 70, 200, 1200, 5000, 100_000)


def number_at_limit(rng: random.Random) -> int:
    """An integer where something ends, or just beside it."""
    value = rng.choice(LIMITS) + rng.choice((-1, 0, 0, 0, 1))
    return -value if rng.random() < 0.25 else value


def _span(rng: random.Random, size: int, longest: int) -> tuple[int, int]:
    """A range inside `size` things; short ones are likelier."""
    start = rng.randrange(size + 1)
    length = min(size - start, int(longest ** rng.random()))
    return start, start + length


def _repeats(rng: random.Random, size: int) -> int:
    largest = LARGEST if rng.random() < 0.02 else LARGEST >> 5  # large mutants are slow to read
    return min(rng.choice(_REPEATS), max(largest // max(size, 1), 1))


# Bytes.


def binary(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Bits, bytes, fixed-width and variable-length integers, cuts, copies, splices."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _STEPS[rng.randrange(len(_STEPS))](rng, out, others)
    return bytes(out[:LARGEST])


def _flip(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    if out:
        out[rng.randrange(len(out))] = rng.choice((0, 1, 2, 127, 128, 254, 255, rng.randrange(256)))


def _integer(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    width = rng.choice((2, 4, 4, 8))
    if len(out) >= width:
        at = rng.randrange(len(out) - width + 1)
        if rng.random() < 0.5:
            at -= at % width
        value = number_at_limit(rng) % (1 << 8 * width)
        out[at : at + width] = value.to_bytes(width, "little")


def _varint(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    """An integer as protobuf, or as MLIR's bytecode, writes it."""
    value, at = abs(number_at_limit(rng)) % 2**64, rng.randrange(len(out) + 1)
    coded = protobuf_varint(value) if rng.random() < 0.5 else prefix_varint(value)
    out[at : at + rng.choice((0, 1, 1, len(coded)))] = coded


def _cut(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    start, stop = _span(rng, len(out), 1 + len(out))
    if rng.random() < 0.2:
        stop = len(out)
    del out[start:stop]


def _copy(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    start, stop = _span(rng, len(out), 64)
    at = rng.randrange(len(out) + 1)
    piece = bytes(out[start:stop])
    out[at:at] = piece * _repeats(rng, len(piece)) if rng.random() < 0.2 else piece


def _splice(rng: random.Random, out: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others) if others else b""
    start, stop = _span(rng, len(other), 1 + len(other))
    at = rng.randrange(len(out) + 1)
    out[at : at + rng.choice((0, stop - start))] = other[start:stop]


_STEPS = (_flip, _byte, _byte, _integer, _varint, _varint, _cut, _copy, _splice)


def protobuf_varint(value: int) -> bytes:
    """The number in groups of seven bits."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def prefix_varint(value: int) -> bytes:
    """The number as MLIR's bytecode writes it: trailing zeros of the first byte count the rest."""
    for extra in range(8):
        if value < 1 << 7 * (extra + 1):
            return ((value << 1 | 1) << extra).to_bytes(extra + 1, "little")
    return bytes(1) + value.to_bytes(8, "little")


# Text.

_TOKEN = re.compile(
    r'\s+|"(?:[^"\\\n]|\\.)*"|0x[0-9a-fA-F]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|.'
)
_OPENERS = "([{<"


def text(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Tokens changed, moved, repeated; numbers at limits; brackets nested deeply."""
    if rng.random() < 0.1:
        return binary(rng, data, others)
    tokens = _TOKEN.findall(data.decode("utf-8", "replace"))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if tokens:
            _TEXT_STEPS[rng.randrange(len(_TEXT_STEPS))](rng, tokens, others)
    return "".join(tokens).encode("utf-8", "replace")[:LARGEST]


def _some(rng: random.Random, tokens: list[str], pattern: str) -> int | None:
    """The place of a token that the pattern fits, or None."""
    places = [i for i, token in enumerate(tokens) if re.match(pattern, token)]
    return rng.choice(places) if places else None


def _text_number(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    at = _some(rng, tokens, r"-?\d")
    if at is not None:
        tokens[at] = rng.choice(
            (str(number_at_limit(rng)), str(rng.randrange(9)), "-1", "1e999", "nan", "9" * 5000)
        )


def _text_cut(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    start, stop = _span(rng, len(tokens), 12)
    del tokens[start : len(tokens) if rng.random() < 0.05 else stop]


def _text_copy(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    start, stop = _span(rng, len(tokens), 30)
    at, piece = rng.randrange(len(tokens) + 1), tokens[start:stop]
    count = _repeats(rng, len("".join(piece))) if rng.random() < 0.3 else 1
    tokens[at:at] = ["".join(piece) * count] if count > 1 else piece


def _text_swap(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    """One word for another one of the same kind."""
    at = _some(rng, tokens, rng.choice((r"[A-Za-z_]", r'"', r"-?\d", r".")))
    if at is not None:
        other = _some(rng, tokens, re.escape(tokens[at][0]) if rng.random() < 0.2 else r"\w")
        if other is not None:
            tokens[at] = tokens[other]


def _text_splice(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    if others:
        lines = rng.choice(others).decode("utf-8", "replace").splitlines(keepends=True)
        start, stop = _span(rng, len(lines), 6)
        at = rng.randrange(len(tokens) + 1)
        tokens[at:at] = ["".join(lines[start:stop])]


def _text_nest(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    at = _some(rng, tokens, r"[(\[{<]$")
    if at is not None:
        count = _repeats(rng, 1)
        closer = ")]}>"[_OPENERS.index(tokens[at][0])]
        stop = next((i for i in range(at, len(tokens)) if tokens[i] == closer), None)
        tokens[at] *= count
        if stop is not None and rng.random() < 0.7:
            tokens[stop] *= count


def _text_character(rng: random.Random, tokens: list[str], others: Sequence[bytes]) -> None:
    at = rng.randrange(len(tokens))
    word = tokens[at]
    place = rng.randrange(len(word) + 1)
    mark = rng.choice('"\\\n\0 %@#!<>(){}[],:=-*?x\u00e9\U0001f600') if word else ""
    tokens[at] = word[:place] + mark + word[place + rng.randrange(2) :]


_TEXT_STEPS = (
    _text_number, _text_number, _text_cut, _text_copy, _text_swap, _text_swap, _text_splice,
    _text_nest, _text_character,
)  # fmt: skip


# JSON.


def json_document(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Values changed, moved, dropped, repeated and nested; sometimes the text itself."""
    if rng.random() < 0.15:
        return text(rng, data, others)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return text(rng, data, others)
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            places = list(_json_places(document))
            if not places:
                break
            holder, key = rng.choice(places)
            _json_step(rng, holder, key, places)
        return json.dumps(document).encode()[:LARGEST]
    except (RecursionError, ValueError):  # it holds itself, or is too deep
        return data


def _json_places(document: Any) -> Any:
    stack = [document]
    while stack:
        holder = stack.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in list(keys):
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                stack.append(holder[key])


def _json_step(rng: random.Random, holder: Any, key: Any, places: list[Any]) -> None:
    kind = rng.randrange(7)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, name = rng.choice(places)
        if name in other if isinstance(other, dict) else name < len(other):
            holder[key] = json.loads(json.dumps(other[name]))
    elif kind == 2:
        for _ in range(min(rng.choice(_REPEATS), 900)):
            holder[key] = [holder[key]] if rng.random() < 0.5 else {"": holder[key]}
    elif kind == 3 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * min(rng.choice(_REPEATS), 2000)
    elif kind == 4 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "a.b", "../x", "\0", str(key) * 9))] = holder.pop(key)
    elif kind == 5 and isinstance(holder[key], str):
        holder[key] = text(rng, holder[key].encode("utf-8", "replace"), ()).decode(
            "utf-8", "replace"
        )[:5000]
    else:
        choices = (None, True, -1, 0.5, "", [], {}, 1e308, float("nan"), "9" * 50, "\ud800")
        holder[key] = rng.choice((*choices, number_at_limit(rng), number_at_limit(rng)))


# Protobuf: a message is a list of [field, wire type, value]; bytes that read as one are one.

Message = list[list[Any]]
_LARGEST_MESSAGE = 1 << 14  # fields of what is changed further


def protobuf(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Fields changed, moved, dropped, repeated and nested, all lengths fitting; or raw bytes."""
    message = None if rng.random() < 0.15 else parse_message(data)
    if message is None:
        return binary(rng, data, others)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(itertools.islice(_fields(message), _LARGEST_MESSAGE + 1))
        if not places or len(places) > _LARGEST_MESSAGE:
            break
        _protobuf_step(rng, rng.choice(places), places, others)
    return write_message(message)[:LARGEST]


def parse_message(data: bytes, depth: int = 0) -> Message | None:
    """The fields of a message; None where the bytes are none."""
    fields: Message = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        field, wire = tag >> 3, tag & 7
        if at < 0 or not 0 < field < 64 or wire not in (0, 1, 2, 5):
            return None
        if wire == 0:
            value, at = _read_varint(data, at)
            if at < 0:
                return None
            fields.append([field, wire, value])
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _read_varint(data, at)
        if at < 0 or at + size > len(data):
            return None
        piece = data[at : at + size]
        inner = parse_message(piece, depth + 1) if wire == 2 and piece and depth < 60 else None
        fields.append([field, wire, piece if inner is None else inner])
        at += size
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    return 0, -1


def write_message(message: Message) -> bytes:
    """The bytes of `parse_message`'s fields."""
    out = bytearray()
    for field, wire, value in message:
        out += protobuf_varint(field << 3 | wire)
        if wire == 0:
            out += protobuf_varint(value)
            continue
        piece = write_message(value) if isinstance(value, list) else value
        out += (protobuf_varint(len(piece)) if wire == 2 else b"") + piece
    return bytes(out)


def _fields(message: Message) -> Any:
    stack = [message]
    while stack:
        holder = stack.pop()
        for index, (_, _, value) in enumerate(holder):
            yield holder, index
            if isinstance(value, list):
                stack.append(value)


def _protobuf_step(
    rng: random.Random, place: tuple[Message, int], places: list[Any], others: Sequence[bytes]
) -> None:
    holder, index = place
    if index >= len(holder):
        return
    field, wire, value = holder[index]
    kind = rng.randrange(10)
    if kind == 0:
        del holder[index]
    elif kind == 1:
        size = len(write_message([holder[index]]))
        holder[index:index] = [holder[index]] * _repeats(rng, size)
    elif kind == 2:
        other, at = rng.choice(places)
        if at < len(other):
            piece = write_message([other[at]])
            copied = parse_message(piece)
            if copied:
                holder[index] = copied[0] if rng.random() < 0.3 else [field, *copied[0][1:]]
    elif kind == 3 and others:
        found = parse_message(rng.choice(others)) or []
        fitting = [entry for entry in found if entry[0] == field] or found
        if fitting:
            holder.insert(index, rng.choice(fitting))
    elif kind == 4 and isinstance(value, list):
        piece = write_message(value)
        for _ in range(min(rng.choice(_REPEATS), 300)):
            piece = protobuf_varint(field << 3 | 2) + protobuf_varint(len(piece)) + piece
        holder[index] = [field, 2, piece]
    elif kind == 5:
        holder[index] = [rng.randrange(1, 20), wire, value]
    elif wire == 0:
        small = rng.randrange(12)
        holder[index] = [field, 0, rng.choice((small, small, abs(number_at_limit(rng)) % 2**64))]
    elif isinstance(value, bytes):
        holder[index] = [field, wire, _leaf(rng, value, wire)]


def _leaf(rng: random.Random, value: bytes, wire: int) -> bytes:
    if wire != 2:
        return rng.randbytes(len(value))
    if value[:1] == b"{":
        return json_document(rng, value, ())
    return (text if value.isascii() and rng.random() < 0.5 else binary)(rng, value, ())


def base64_protobuf(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A message that travels as text."""
    if rng.random() < 0.05:
        return binary(rng, data, others)
    plain = [base64.b64decode(other) for other in others[:4]]
    return base64.b64encode(protobuf(rng, base64.b64decode(data), plain))


MUTATORS: dict[str, Mutator] = {
    "binary": binary,
    "text": text,
    "json": json_document,
    "protobuf": protobuf,
    "base64": base64_protobuf,
}
