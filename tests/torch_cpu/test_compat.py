"""Private PyTorch names are taken in one place, which says what is missing."""

from __future__ import annotations

import pytest

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt import compat


@pytest.mark.parametrize(("module", "name"), [("torch", "no_such_name"), ("torch._no_such_module", "name")])
def test_a_missing_name_is_an_answer_to_the_user(module, name):
    with pytest.raises(LynxError, match=f"has no {module}.{name}") as caught:
        compat.private(module, name)
    assert compat.TRIED[0] in caught.value.hint
