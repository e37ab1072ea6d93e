"""Options that several verbs share, and how their text becomes records. May import click; the rest lazily."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from lynx_plan.errors import LynxError

if TYPE_CHECKING:
    from lynx_plan.model.graph import CostGraph, ModelSpec
    from lynx_plan.model.machine import Link, Machine

Command = TypeVar("Command", bound=Callable[..., Any])
ALGORITHMS = "none, full, selective, ondemand, heu"  # what compare compares
KNOWN = (  # as the registry has them, which is slow to import
    "none, full, uniform, block, selective, ondemand, knapsack, checkmate, rotor, overlap-collective, overlap-p2p, "
    "overlap-bubble, heu, heu-uniform, opt"
)


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "json_", is_flag=True, help="Print one JSON document instead.")(command)


def output_options(default: str) -> Callable[[Command], Command]:
    """`-o FILE` with a default name, and `--force`."""

    def add(command: Command) -> Command:
        text = "Overwrite a file named with -o."
        command = click.option("--force", is_flag=True, help=text)(command)
        text = "Where to write; - is standard output."
        return click.option("-o", "--output", default=default, show_default=True, metavar="FILE", help=text)(command)

    return add


def budget_option(command: Command) -> Command:
    """`--budget`."""
    return click.option(
        "--budget", default="auto", show_default=True,
        help="Memory to use: 60GiB, 70% of what none needs, between:full,none,0.5, or auto (the machine's memory).",
    )(command)  # fmt: skip


def micro_batches_option(command: Command) -> Command:
    """`--micro-batches`."""
    return click.option(
        "--micro-batches", type=click.IntRange(min=1), default=1, show_default=True, help="Microbatches in a step."
    )(command)


MESH = {"dp": "Data", "cp": "Context", "ep": "Expert", "tp": "Tensor"}


def mesh_options(command: Command) -> Command:
    """`--dp`, `--cp`, `--ep` and `--tp`: the ranks of each mesh dimension, the outermost first."""
    for name, kind in reversed(MESH.items()):
        text = f"{kind}-parallel ranks."
        command = click.option(f"--{name}", type=click.IntRange(min=1), default=1, show_default=True, help=text)(
            command
        )
    return command


def moe_options(command: Command) -> Command:
    """`--moe-load` and `--moe-bytes`: what to assume of sizes that depend on data."""
    text = "Sizes that depend on data: rows received, relative to a balanced load."
    kind = click.FloatRange(min=1)
    load = click.option("--moe-load", type=kind, default=1.0, show_default=True, metavar="FACTOR", help=text)
    text = "Memory of such sizes: their worst case, or that load."
    choice = click.Choice(["bound", "load"])
    return load(click.option("--moe-bytes", type=choice, default="bound", show_default=True, help=text)(command))


def static_options(command: Command) -> Command:
    """`--recipe`, `--shard` and `--shard-within`: static memory of the training job that a machine file prices."""
    for add in (
        click.option("--shard-within", type=click.Choice(["all", "node"]), default="all", show_default=True,
                     help="Shard over all data-parallel ranks, or over those of one node."),
        click.option("--shard", type=click.Choice(["none", "optimizer", "gradients", "parameters"]), default="none",
                     show_default=True, help="What data-parallel ranks share (as ZeRO 1, 2, 3)."),
        click.option("--recipe", default="model", show_default=True, metavar="NAME",
                     help="Bytes per parameter: model (as traced), mixed-adam (2+4+12), mixed-adam-grad16, bf16-adam, "
                     "fp32-adam."),
    ):  # fmt: skip
        command = add(command)
    return command


def mesh(**sizes: int) -> tuple[tuple[str, int], ...]:
    """The mesh of these sizes: its dimensions of more than one rank, the outermost first."""
    return tuple((name, sizes[name]) for name in MESH if sizes[name] > 1)


def may_overwrite(ctx: click.Context, *, force: bool) -> bool:
    """Whether `-o` may replace a file: with --force, or where the user did not name one (the default name)."""
    return force or ctx.get_parameter_source("output") == ParameterSource.DEFAULT


def check_output(ctx: click.Context, output: str, *, force: bool, json_: bool = False) -> None:
    """Fail before long work where writing would fail after it."""
    from lynx_plan.files import check_writable

    if output == "-" and json_:
        raise click.UsageError("'-o -' and '--json' both want standard output", ctx)
    check_writable(output, overwrite=may_overwrite(ctx, force=force))


def model_spec(model: str, arguments: tuple[str, ...]) -> ModelSpec:
    """`MODEL.py[:builder]` and `--arg key=value` pairs as a record."""
    from lynx_plan.model.graph import ModelSpec

    path, colon, builder = model.rpartition(":")
    if not colon or not builder.isidentifier():
        path, builder = model, "build_model"
    if not Path(path).is_file():
        raise LynxError("no such model file", where=path, hint="name a Python file that defines build_model(mesh)")
    pairs = _pairs(arguments)
    return ModelSpec(path=path, builder=builder, arguments=tuple(sorted(pairs.items())))


def _pairs(arguments: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key.isidentifier():
            raise LynxError(f"'{argument}' is not key=value", where="--arg", hint="for example --arg layers=4")
        pairs[key] = value
    return pairs


def hf_options(command: Command) -> Command:
    """`--hf`, `--seq`, `--micro-batch` and `--dtype`."""
    for add in (
        click.option("--dtype", metavar="NAME", help="With --hf: parameters' dtype (default: the configuration's)."),
        click.option("--micro-batch", type=click.IntRange(min=1), default=1, show_default=True,
                     help="With --hf: sequences in a microbatch."),
        click.option("--seq", type=click.IntRange(min=1), default=2048, show_default=True,
                     help="With --hf: tokens of a sequence."),
        click.option("--hf", metavar="CONFIG", help="A causal language model's Hugging Face config.json or folder."),
    ):  # fmt: skip
        command = add(command)
    return command


def hf_spec(path: str, arguments: tuple[str, ...], *, seq: int, micro_batch: int, dtype: str | None) -> ModelSpec:
    """`--hf` and what belongs to it as a record."""
    from lynx_plan.model.graph import HF, ModelSpec

    if not Path(path).exists():
        hint = "name a config.json, or the folder that holds one"
        raise LynxError("no such configuration", where=path, hint=hint)
    own = {"seq": str(seq), "micro_batch": str(micro_batch), **({"dtype": dtype} if dtype else {})}
    pairs = {**own, **_pairs(arguments)}
    return ModelSpec(path=path, builder=HF, arguments=tuple(sorted(pairs.items())))


def is_other_rank() -> bool:
    """Whether this process is a rank of an outer torchrun other than 0: it takes part, and reports nothing."""
    return "WORLD_SIZE" in os.environ and os.environ.get("RANK", "0") != "0"


def link(text: str | None) -> Link | None:
    """`RATE:LATENCY` as a record."""
    from lynx_plan.cost.link import parse_link

    return parse_link(text) if text else None


def load_profile(path: str) -> CostGraph:
    """A profile."""
    from lynx_plan.files import load
    from lynx_plan.model.graph import CostGraph

    check_made(path)
    return load(path, CostGraph)


def check_made(path: str) -> None:
    """Where a file of a default name is missing, say which verb makes it."""
    maker = {"profile.json": "lynx profile MODEL.py", "plan.json": "lynx plan"}.get(path)
    if maker and not Path(path).exists():
        what = path.removesuffix(".json")
        raise LynxError(f"no {what} here", where=path, hint=f"make one first: {maker}")


def algorithms(text: str) -> tuple[str, ...]:
    """A comma-separated list of algorithms, each checked; `selective:core_attn,layernorm` is one of them."""
    from lynx_plan.solve.registry import SOLVERS, solver

    names: list[str] = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        if names and ":" in names[-1] and name.partition(":")[0] not in SOLVERS:
            names[-1] += f",{name}"  # the setting before it goes on
        else:
            names.append(name)
    if not names:
        raise LynxError("names no algorithm", where="--algo", hint=f"known: {', '.join(SOLVERS)}")
    for name in names:
        solver(name)
    return tuple(dict.fromkeys(names))


def algorithm(text: str) -> str:
    """One algorithm."""
    names = algorithms(text)
    if len(names) > 1:
        raise LynxError("takes one algorithm", where="--algo", hint=f"compare several with: lynx compare --algo {text}")
    return names[0]


def with_fusion(machine: Machine | None, name: str | None) -> Machine | None:
    """`--fusion`: the machine with a backend's fused kernels. Only prices by formula can be changed by it."""
    if name is None:
        return machine
    from lynx_plan.cost.backends import with_backend

    if machine is None:
        hint = "name a machine to price by with --machine, or leave --fusion out"
        raise LynxError("measured ops are what they are: nothing is fused", where="--fusion", hint=hint)
    return with_backend(machine, name)
