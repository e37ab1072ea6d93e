"""The help texts, kept as text."""

from __future__ import annotations

import pytest

from lynx_plan.cli.main import VERBS, call
from tests.golden.samples import check_golden


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help(verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert call([*([verb] if verb else []), "--help"]) == 0
    check_golden(f"help_{verb or 'lynx'}", capsys.readouterr().out)


def test_short_help_of_a_verb_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    text = capsys.readouterr().out
    for verb, short in VERBS.items():
        assert short in text, verb
