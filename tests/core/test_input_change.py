"""Inputs that change their shape or type: numbered, and told once each."""

from __future__ import annotations

from types import SimpleNamespace

from monitor_core.collectors.inputs import InputSignatures
from monitor_core.detectors import REGISTRY
from monitor_core.detectors.texts import describe


def tensor(*shape: int, dtype: str = "Float32") -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype)


def test_shapes_and_types_are_plain_values() -> None:
    signature = InputSignatures().of([tensor(4, 3), tensor(4, dtype="Int32"), "no tensor"])
    assert signature is not None
    assert signature.nested == {"input_shapes": [[4, 3], [4]], "input_dtypes": ["float32", "int32"]}
    assert InputSignatures().of(["no tensor"]) is None


def test_each_distinct_set_has_its_own_number() -> None:
    signatures = InputSignatures()
    elements = [
        tensor(4, 3), [tensor(2, 3)], [tensor(4, 3, dtype="Float16")], [tensor(4, 3)], [tensor(4), tensor(3)],
    ]  # fmt: skip
    assert [found.number for element in elements if (found := signatures.of(element))] == [0, 1, 2, 0, 3]


def test_a_set_never_seen_is_told_at_its_first_step_and_once() -> None:
    detector = REGISTRY["input_change"]()
    told = [
        finding
        for step, signature in enumerate([0, 0, 1, 0, 1, None, 2, 2, 0])
        for finding in detector.update(step, [signature])
    ]
    assert [(finding.first_step, finding.evidence["sets"]) for finding in told] == [(2, 2), (6, 3)]
    assert list(detector.findings()) == told
    for language in ("en", "zh"):
        text = describe(told[0], language)
        assert "{" not in text.evidence
        assert all("_" not in words or " " in words for words in text.causes + text.advice), "texts, not keys"
