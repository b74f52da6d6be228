"""What a tuning holds, what it refuses, and when a tuner measures."""

from __future__ import annotations

import json

import pytest

import girih
from girih.optimizer import tuning
from girih.optimizer.tuning import Ready, Tuner, Tuning, TuningEntry, Variant, digest_of

FIRST, SECOND, THIRD = ({"rows": n, "pack": n == 2, "sizes": [n, 8]} for n in (1, 2, 3))
VARIANTS = [Variant(FIRST, 1e-3), Variant(SECOND, 2e-3), Variant(THIRD, 3e-3)]
ENTRY = TuningEntry("dot", SECOND, 2e-3, 0.5, "a machine")


def document(**changes):
    entry = {**Tuning({"0" * 32: ENTRY}).to_json()["kernels"]["0" * 32], **changes}
    return {"schema": tuning.SCHEMA, "version": 1, "kernels": {"0" * 32: entry}}


def ready(choice):
    return Ready(None, repr(sorted(choice.items())).encode(), {})


class Clock:
    """Says that the last variant is the fastest, and counts what it timed."""

    def __init__(self):
        self.timed = []

    def __call__(self, variants):
        self.timed.append(len(variants))
        return [1.0 / (number + 1) for number in range(len(variants))]


def choose(tuner, name="a", legal=lambda choice: True, make=ready):
    return tuner.choose(digest_of(name, "cpu"), name, VARIANTS, legal, make)


def test_a_tuning_is_what_its_text_says():
    one = Tuning({digest_of("a", "cpu"): ENTRY, digest_of("b", "cpu"): ENTRY})
    assert tuning.from_text(json.dumps(one.to_json()), "x") == one
    assert len({digest_of("a", "cpu"), digest_of("a", "gpu"), digest_of("b", "cpu")}) == 3
    assert digest_of("1", "2") != digest_of("", "21")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"schema": "other"}, "schema is not girih.tuning"),
        ([], "schema"),
        ({**document(), "version": 2}, "version 2, this girih reads 1"),
        ({**document(), "kernels": []}, "no kernels"),
        ({**document(), "kernels": {"xyz": {}}}, "'xyz' is no digest"),
        (document(extra=1), "other fields"),
        (document(choice=[1]), "no map"),
        (document(choice={"rows": 1.5}), "no map of whole numbers"),
        (document(choice={"sizes": [1, True]}), "no map of whole numbers"),
        (document(measured=float("nan")), "measured of kernel"),
        (document(predicted=10**400), "predicted of kernel"),
        (document(predicted=True), "predicted of kernel"),
        (document(machine=3), "machine of kernel"),
    ],
)
def test_a_damaged_document_is_one_sentence(data, words):
    with pytest.raises(girih.UserError, match=words) as caught:
        tuning.from_json(data, "file")
    assert "'file'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\xfa", b"[" * 100_000, b"1" * 5000])
def test_a_text_that_is_no_json(text):
    with pytest.raises(girih.UserError, match="'file' is damaged"):
        tuning.from_text(text, "file")


def test_the_fastest_of_the_best_predicted_is_taken_once():
    clock = Clock()
    tuner = Tuner(None, 2, clock, "here")
    assert choose(tuner) == SECOND and choose(tuner) == SECOND
    assert clock.timed == [2]
    assert tuner.tuning.entries == {
        digest_of("a", "cpu"): TuningEntry("a", SECOND, 2e-3, 0.5, "here")
    }
    assert not tuner.notes


def test_equal_code_is_timed_once():
    clock = Clock()
    assert choose(Tuner(None, 3, clock), make=lambda choice: Ready(None, b"same", {})) == FIRST
    assert clock.timed == [1]


def test_what_is_known_is_not_timed():
    def never(variants):
        raise AssertionError("timed")

    known = Tuning({digest_of("a", "cpu"): ENTRY})
    for measure in (0, 2):
        tuner = Tuner(known, measure, never)
        assert choose(tuner) == SECOND
        assert tuner.tuning == known and not tuner.notes
    with pytest.raises(AssertionError, match="timed"):
        choose(Tuner(known, 2, never), "b")


def test_what_is_lacking_or_illegal_is_the_models_and_a_note():
    tuner = Tuner(Tuning({digest_of("a", "cpu"): ENTRY}), 0, Clock())
    assert choose(tuner, legal=lambda choice: choice != SECOND) is None
    assert choose(tuner, "b") is None
    assert tuner.notes == ("2 kernels (a, b) not in the tuning: the cost model chose",)
    assert not tuner.tuning.entries
    assert choose(Tuner(Tuning({digest_of("a", "cpu"): ENTRY}), 3, Clock()), "a",
                  lambda choice: choice != SECOND) == THIRD  # fmt: skip


def test_no_kernel_is_begun_when_the_time_is_over(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    tuner = Tuner(None, 2, Clock())
    assert choose(tuner) == SECOND
    now[0] += tuning.BUDGET + 1
    assert choose(tuner, "b") is None and choose(tuner) == SECOND
    assert tuner.notes == ("1 kernel (b) not measured, as 30 s were over: the cost model chose",)


def test_among_equally_fast_ones_the_best_predicted_is_taken():
    assert choose(Tuner(None, 3, lambda variants: [1.2, 1.01, 1.0])) == SECOND
    assert choose(Tuner(None, 3, lambda variants: [1.01, 1.2, 1.0])) == FIRST
