"""What no plan can run is refused with the name of what is wrong, and what looks like it but works is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lynx_plan.errors import LynxError
from lynx_plan.torch_rt.native_ops import LSTM_NOTE
from tests.torch_cpu.models import capture


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)


class ChangesItsInput(Base):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return self.linear(x).square().mean()


class ChangesAParameter(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        return self.linear(x).square().mean()


class OwnGenerator(Base):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(4, 8, generator=torch.Generator().manual_seed(1))
        return (self.linear(x) * noise).square().mean()


class Sparse(Base):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.embedding(torch.arange(4))).square().mean()


class ChangesACopy(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y[:, :4].mul_(2)
        y.data.clamp_(-1, 1)
        return y.square().mean()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ChangesItsInput, "forward changes its input 0 in place"),
        (ChangesAParameter, "forward changes the parameter 'linear.weight' in place"),
        (OwnGenerator, "the model draws from a torch.Generator of its own"),
        (Sparse, "makes a sparse tensor"),
    ],
)
def test_refused_by_name(model: type[nn.Module], message: str) -> None:
    with pytest.raises(LynxError, match=message) as refused:
        capture(model(), torch.randn(4, 8))
    assert refused.value.hint


def test_changing_what_forward_made_is_fine() -> None:
    assert capture(ChangesACopy(), torch.randn(4, 8)).graph.ops


def test_an_lstm_says_how_it_was_traced() -> None:
    class Model(Base):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.recurrent(x)[0]).square().mean()

    graph = capture(Model(), torch.randn(3, 2, 8)).graph
    assert LSTM_NOTE in graph.notes
    assert not any("mkldnn" in op.kind for op in graph.ops)
