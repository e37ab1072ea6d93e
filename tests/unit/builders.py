"""Small priced cost graphs in a few lines: Megatron-like layers, serial chains, a builder for anything else."""

from __future__ import annotations

from dataclasses import dataclass

from lynx_plan.model.graph import (
    CostGraph,
    Layer,
    ModelSpec,
    Op,
    Phase,
    Role,
    StaticMemory,
    Storage,
    StorageKind,
    Tensor,
)
from lynx_plan.model.machine import Link, Machine
from lynx_plan.model.program import Item

ALL_REDUCE = "_c10d_functional.all_reduce"
WAIT = "_c10d_functional.wait_tensor"
LAYER_NORM = "aten.native_layer_norm"
MATMUL = "aten.mm"
MACHINE = Machine(
    name="test",
    device="cpu",
    memory_bytes=1 << 30,
    margin_bytes=1 << 20,
    link=Link(bytes_per_s=10**9, latency_ns=0),
)


class GraphBuilder:
    """Collects layers, tensors and ops, appended in execution order. Sizes are bytes, tensors are 1-D float32."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.storages: list[Storage] = []
        self.layers: list[tuple[str, list[int]]] = []
        self.current = -1

    def layer(self, name: str) -> None:
        """Ops that follow belong to this layer; layers are numbered in the order of their first mention."""
        names = [known for known, _ in self.layers]
        if name not in names:
            self.layers.append((name, []))
            names.append(name)
        self.current = names.index(name)

    def source(self, name: str, size: int, kind: StorageKind = StorageKind.PARAMETER) -> int:
        """A graph input of `size` bytes; its tensor id."""
        return self._tensor(name, self._storage(size, kind), -1, size)

    def op(
        self,
        name: str,
        inputs: tuple[int, ...],
        sizes: tuple[int, ...] = (),
        *,
        kind: str = MATMUL,
        phase: Phase = Phase.FORWARD,
        role: Role = Role.COMPUTE,
        alias: bool = False,
        **fields: int | str | bool,
    ) -> tuple[int, ...]:
        """Append an op with one output per size (`alias`: in its first input's storage); the output tensor ids."""
        op = len(self.ops)
        outputs = []
        for port, size in enumerate(sizes):
            storage = self.tensors[inputs[0]].storage if alias else self._storage(size, StorageKind.ACTIVATION)
            outputs.append(self._tensor(f"{name}.{port}" if port else name, storage, op, size))
        self.ops.append(
            Op(id=op, name=name, kind=kind, role=role, phase=phase, inputs=inputs, outputs=tuple(outputs), **fields)  # type: ignore[arg-type]
        )
        self.layers[self.current][1].append(op)
        return tuple(outputs)

    def view(self, name: str, source: int, size: int, phase: Phase = Phase.FORWARD) -> int:
        """A view of `source`."""
        return self.op(name, (source,), (size,), kind="aten.view", role=Role.VIEW, phase=phase, alias=True)[0]

    def all_reduce(
        self, name: str, source: int, size: int, phase: Phase, *, comm_ns: int, launch_ns: int = 0, steal_ns: int = 0
    ) -> int:
        """A launch and its wait, one after the other; the waited tensor."""
        (reduced,) = self.op(
            name, (source,), (size,), kind=ALL_REDUCE, role=Role.COLLECTIVE, phase=phase, attributes="sum, tp",
            group="tp", group_size=2, comm_bytes=size, time_ns=launch_ns, comm_ns=comm_ns, steal_ns=steal_ns,
        )  # fmt: skip
        return self.op(f"{name}_wait", (reduced,), (size,), kind=WAIT, role=Role.WAIT, phase=phase, alias=True)[0]

    def accumulate(self, parameter: str, gradient: int, time_ns: int = 0) -> None:
        """Add a new weight gradient to its main gradient."""
        self.op(
            f"{parameter.rpartition('.')[2]}_accumulate", (gradient,), kind="lynx.accumulate", role=Role.ACCUMULATE,
            phase=Phase.WEIGHT_GRADIENT, effect=True, parameter=parameter, time_ns=time_ns,
        )  # fmt: skip

    def build(self, *, outputs: tuple[int, ...] = (), optimizer_ns: int = 0) -> CostGraph:
        """The finished graph; gradients are as large as parameters, and the optimizer holds nothing."""
        size = {kind: sum(s.bytes for s in self.storages if s.kind == kind) for kind in StorageKind}
        static = StaticMemory(
            parameters_bytes=size[StorageKind.PARAMETER],
            buffers_bytes=size[StorageKind.BUFFER],
            gradients_bytes=size[StorageKind.PARAMETER],
            optimizer_bytes=0,
            inputs_bytes=size[StorageKind.INPUT],
        )
        layers = tuple(Layer(id=i, name=name, ops=tuple(sorted(ops))) for i, (name, ops) in enumerate(self.layers))
        return CostGraph(
            model=ModelSpec(path="model.py"), mesh=(("tp", 2),), machine=MACHINE, static=static, layers=layers,
            ops=tuple(self.ops), tensors=tuple(self.tensors), storages=tuple(self.storages), outputs=outputs,
            optimizer_ns=optimizer_ns,
        )  # fmt: skip

    def _storage(self, size: int, kind: StorageKind) -> int:
        self.storages.append(Storage(id=len(self.storages), bytes=size, kind=kind))
        return len(self.storages) - 1

    def _tensor(self, name: str, storage: int, producer: int, size: int) -> int:
        tensor = Tensor(
            id=len(self.tensors), name=name, storage=storage, producer=producer, dtype="float32",
            shape=(size // 4,), stride=(1,),
        )  # fmt: skip
        self.tensors.append(tensor)
        return tensor.id


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Costs of a Megatron-like model: `hidden` is the bytes of one full activation, `tp` divides the sharded ones."""

    hidden: int = 1 << 20
    tp: int = 2
    weight: int = 1 << 18
    matmul_ns: int = 1_000_000
    attention_ns: int = 800_000
    pointwise_ns: int = 100_000
    comm_ns: int = 2_000_000
    launch_ns: int = 10_000
    steal_ns: int = 0
    dropout: bool = False  # an RNG op after each forward wait
    optimizer_ns: int = 0


def megatron_graph(layers: int = 2, sizes: Sizes | None = None) -> CostGraph:
    """Embedding, `layers` identical tensor-parallel transformer layers, head with the loss; forward and backward."""
    return _Megatron(sizes or Sizes()).graph(layers)


class _Megatron:
    """Writes the ops of one Megatron-like model in eager execution order (each wait directly after its launch)."""

    def __init__(self, sizes: Sizes) -> None:
        self.s = sizes
        self.b = GraphBuilder()
        self.saved: dict[str, int] = {}  # "layer.tensor" -> tensor id
        self.prefix = ""

    def graph(self, layers: int) -> CostGraph:
        b, hidden = self.b, self.s.hidden
        tokens = b.source("tokens", hidden // 64, StorageKind.INPUT)
        names = [f"layers.{i}" for i in range(layers)]
        self.enter("embedding")
        x = b.op(
            "embed", (tokens, self.weight("table")), (hidden,), kind="aten.embedding", time_ns=self.s.pointwise_ns
        )[0]
        for name in names:
            self.enter(name)
            x = self.forward_layer(x)
        self.enter("head")
        loss, dx = self.head(x)
        for name in reversed(names):
            self.enter(name)
            dx = self.backward_layer(dx)
        self.enter("embedding")
        kind, phase = "aten.embedding_dense_backward", Phase.WEIGHT_GRADIENT
        (table,) = b.op(
            "embed_wgrad", (dx, tokens), (self.s.weight,), kind=kind, phase=phase, time_ns=self.s.pointwise_ns
        )
        b.accumulate("embedding.table", table)
        return b.build(outputs=(loss,), optimizer_ns=self.s.optimizer_ns)

    def enter(self, name: str) -> None:
        self.b.layer(name)
        self.prefix = f"{name}."

    def keep(self, **tensors: int) -> None:
        self.saved.update({self.prefix + name: tensor for name, tensor in tensors.items()})

    def kept(self, name: str) -> int:
        return self.saved[self.prefix + name]

    def weight(self, name: str) -> int:
        tensor = self.b.source(self.prefix + name, self.s.weight)
        self.keep(**{name: tensor})
        return tensor

    def forward_layer(self, x: int) -> int:
        s, b = self.s, self.b
        part = s.hidden // s.tp
        y = self.norm("ln1", x)
        (qkv,) = b.op("qkv", (y, self.weight("w_qkv")), (3 * part,), time_ns=s.matmul_ns)
        q, k, v = (b.view(name, qkv, part) for name in ("q", "k", "v"))
        o, lse = b.op("attention", (q, k, v), (part, part // 64), kind="attention", time_ns=s.attention_ns)
        (p,) = b.op("proj", (o, self.weight("w_proj")), (s.hidden,), time_ns=s.matmul_ns)
        x2 = self.residual("1", x, p)
        y2 = self.norm("ln2", x2)
        (u,) = b.op("up", (y2, self.weight("w_up")), (4 * part,), time_ns=s.matmul_ns)
        (g,) = b.op("gelu", (u,), (4 * part,), kind="aten.gelu", time_ns=self.s.pointwise_ns)
        (d,) = b.op("down", (g, self.weight("w_down")), (s.hidden,), time_ns=s.matmul_ns)
        self.keep(x=x, y=y, q=q, k=k, v=v, o=o, lse=lse, x2=x2, y2=y2, u=u, g=g)
        return self.residual("2", x2, d)

    def norm(self, name: str, x: int) -> int:
        """Layer norm; keeps its statistics."""
        inputs, sizes = (x, self.weight(f"w_{name}")), (self.s.hidden, self.s.hidden // 64)
        y, statistics = self.b.op(name, inputs, sizes, kind=LAYER_NORM, time_ns=self.s.pointwise_ns)
        self.keep(**{f"{name}_stats": statistics})
        return y

    def residual(self, name: str, x: int, partial: int) -> int:
        """All-reduce of `partial`, dropout if asked for, and the addition to `x`."""
        total = self.reduce(f"reduce{name}", partial, Phase.FORWARD)
        if self.s.dropout:
            sizes = (self.s.hidden, self.s.hidden // 4)
            kind = "aten.native_dropout"
            total, mask = self.b.op(f"dropout{name}", (total,), sizes, kind=kind, rng=True, time_ns=self.s.pointwise_ns)
            self.keep(**{f"mask{name}": mask})
        return self.b.op(f"add{name}", (x, total), (self.s.hidden,), kind="aten.add", time_ns=self.s.pointwise_ns)[0]

    def reduce(self, name: str, source: int, phase: Phase) -> int:
        s = self.s
        return self.b.all_reduce(
            name, source, s.hidden, phase, comm_ns=s.comm_ns, launch_ns=s.launch_ns, steal_ns=s.steal_ns
        )

    def head(self, x: int) -> tuple[int, int]:
        """Final norm, logits and loss, then their backward: the loss, and the gradient of `x`."""
        s, b = self.s, self.b
        y = self.norm("ln", x)
        (logits,) = b.op("logits", (y, self.weight("w_logits")), (s.hidden,), time_ns=s.matmul_ns)
        (loss,) = b.op("loss", (logits,), (4,), kind="aten.cross_entropy", time_ns=self.s.pointwise_ns)
        kind, phase = "aten.cross_entropy_backward", Phase.BACKWARD
        (dlogits,) = b.op("loss_bw", (logits, loss), (s.hidden,), kind=kind, phase=phase, time_ns=self.s.pointwise_ns)
        (dy,) = b.op("logits_dgrad", (dlogits, self.kept("w_logits")), (s.hidden,), phase=phase, time_ns=s.matmul_ns)
        dy = self.reduce("logits_reduce", dy, phase)
        self.weight_gradient("logits", y, dlogits)
        return loss, self.norm_backward("ln", dy, x)

    def backward_layer(self, dout: int) -> int:
        s, b, phase = self.s, self.b, Phase.BACKWARD
        part = s.hidden // s.tp
        kept = self.kept
        dout2 = self.dropout_backward("2", dout)
        (dg,) = b.op("down_dgrad", (dout2, kept("w_down")), (4 * part,), phase=phase, time_ns=s.matmul_ns)
        self.weight_gradient("down", kept("g"), dout2)
        kind = "aten.gelu_backward"
        (du,) = b.op("gelu_bw", (dg, kept("u")), (4 * part,), kind=kind, phase=phase, time_ns=self.s.pointwise_ns)
        (dy2,) = b.op("up_dgrad", (du, kept("w_up")), (s.hidden,), phase=phase, time_ns=s.matmul_ns)
        dy2 = self.reduce("up_reduce", dy2, phase)
        self.weight_gradient("up", kept("y2"), du)
        dx2 = self.add_backward("2", dout, self.norm_backward("ln2", dy2, kept("x2")))
        dx3 = self.dropout_backward("1", dx2)
        (do,) = b.op("proj_dgrad", (dx3, kept("w_proj")), (part,), phase=phase, time_ns=s.matmul_ns)
        self.weight_gradient("proj", kept("o"), dx3)
        inputs = (do, kept("q"), kept("k"), kept("v"), kept("o"), kept("lse"))
        parts = b.op(
            "attention_bw", inputs, (part,) * 3, kind="attention_backward", phase=phase, time_ns=2 * s.attention_ns
        )
        (dqkv,) = b.op("qkv_cat", parts, (3 * part,), kind="aten.cat", phase=phase, time_ns=self.s.pointwise_ns)
        (dy,) = b.op("qkv_dgrad", (dqkv, kept("w_qkv")), (s.hidden,), phase=phase, time_ns=s.matmul_ns)
        dy = self.reduce("qkv_reduce", dy, phase)
        self.weight_gradient("qkv", kept("y"), dqkv)
        return self.add_backward("1", dx2, self.norm_backward("ln1", dy, kept("x")))

    def dropout_backward(self, name: str, gradient: int) -> int:
        if not self.s.dropout:
            return gradient
        inputs, kind = (gradient, self.kept(f"mask{name}")), "aten.native_dropout_backward"
        sizes = (self.s.hidden,)
        return self.b.op(
            f"dropout{name}_bw", inputs, sizes, kind=kind, phase=Phase.BACKWARD, time_ns=self.s.pointwise_ns
        )[0]

    def add_backward(self, name: str, left: int, right: int) -> int:
        sizes, phase = (self.s.hidden,), Phase.BACKWARD
        return self.b.op(
            f"add{name}_bw", (left, right), sizes, kind="aten.add", phase=phase, time_ns=self.s.pointwise_ns
        )[0]

    def norm_backward(self, name: str, gradient: int, x: int) -> int:
        inputs = (gradient, x, self.kept(f"{name}_stats"), self.kept(f"w_{name}"))
        sizes, kind = (self.s.hidden, self.s.weight // 64), "aten.native_layer_norm_backward"
        dx, dw = self.b.op(f"{name}_bw", inputs, sizes, kind=kind, phase=Phase.BACKWARD, time_ns=self.s.pointwise_ns)
        self.b.accumulate(f"{self.prefix}w_{name}", dw)
        return dx

    def weight_gradient(self, name: str, x: int, gradient: int) -> None:
        sizes, phase = (self.s.weight,), Phase.WEIGHT_GRADIENT
        (dw,) = self.b.op(f"{name}_wgrad", (x, gradient), sizes, phase=phase, time_ns=self.s.matmul_ns)
        self.b.accumulate(f"{self.prefix}w_{name}", dw)


def chain_graph(length: int = 4, *, size: int = 100, time_ns: int = 10, optimizer_ns: int = 0) -> CostGraph:
    """A serial chain without communication: f0..f(n-1), then b(n-1)..b0, and one accumulate.

    f_i makes a_i from a_(i-1) (a_(-1) is the input); b_i reads the incoming gradient (the loss for
    the last) and a_(i-1). Every tensor has `size` bytes, every op but the accumulate takes `time_ns`; layer i holds
    f_i and b_i.
    """
    b = GraphBuilder()
    values = [b.source("x", size, StorageKind.INPUT)]
    for i in range(length):
        b.layer(f"layers.{i}")
        values += b.op(f"f{i}", (values[-1],), (size,), kind="aten.tanh", time_ns=time_ns)
    gradient = loss = values[-1]
    for i in reversed(range(length)):
        b.layer(f"layers.{i}")
        phase = Phase.BACKWARD if i else Phase.WEIGHT_GRADIENT
        kind = "aten.tanh_backward"
        (gradient,) = b.op(f"b{i}", (gradient, values[i]), (size,), kind=kind, phase=phase, time_ns=time_ns)
    b.accumulate("layers.0.w", gradient)
    return b.build(outputs=(loss,), optimizer_ns=optimizer_ns)


def plain_order(graph: CostGraph) -> tuple[Item, ...]:
    """Every op once, in graph order."""
    return tuple(Item(op.id) for op in graph.ops)


def op_named(graph: CostGraph, name: str) -> int:
    """The op id of `layer.op`, such as `layers.0.gelu`."""
    layer_name, _, op_name = name.rpartition(".")
    (layer,) = [layer for layer in graph.layers if layer.name == layer_name]
    (op,) = [op for op in layer.ops if graph.ops[op].name == op_name]
    return op
