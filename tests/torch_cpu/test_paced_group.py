"""The emulated link: when transfers start and end, for every collective, and that Gloo's results come through."""

from __future__ import annotations

import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.multiprocessing as mp

from lynx_plan.cost.collectives import collective_ns
from lynx_plan.errors import LynxError
from lynx_plan.model.machine import Link
from lynx_plan.torch_rt import link_clock
from lynx_plan.torch_rt.link_clock import LinkClock, now_ns, sleep_until
from lynx_plan.torch_rt.paced_group import Pace, Recorder, register

LINK = Link(bytes_per_s=10**8, latency_ns=2_000_000)
COUNT = 1000  # float32 numbers


def test_a_transfer_starts_when_the_last_member_arrives(tmp_path):
    one, other = (LinkClock(tmp_path, 2).channel("g", (0, 1)) for _ in range(2))
    sequence, first = one.arrive(500)
    assert one.settled(sequence) is None
    _, last = other.arrive(800)  # the members agree on the longer time
    assert first <= last
    assert one.settled(sequence) == other.settled(sequence) == (last, last + 800)


def test_groups_that_share_a_rank_share_its_link(tmp_path):
    clock = LinkClock(tmp_path, 4)
    groups = {"a": (0, 1), "b": (1, 2), "c": (3,)}
    members = {name: [clock.channel(name, ranks) for _ in ranks] for name, ranks in groups.items()}
    long = 10**12
    for channel in (*members["a"], *members["b"], *members["c"]):
        channel.arrive(long)
    (start, end), after, alone = (members[name][0].settled(0) for name in groups)
    assert end == start + long
    assert after == (end, end + long)
    assert alone[0] < end
    assert list(clock.free_at) == [end, end + long, end + long, alone[1]]


def test_settle_gives_up_where_a_member_never_arrives(tmp_path):
    channel = LinkClock(tmp_path, 2).channel("g", (0, 1))
    sequence, _ = channel.arrive(1)
    with pytest.raises(LynxError, match="did not arrive"):
        channel.settle(sequence, timeout_s=0.01)


def test_slots_are_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(link_clock, "RING", 4)
    channel = LinkClock(tmp_path, 1).channel("g", (0,))
    for _ in range(5):
        channel.arrive(1)
    assert channel.settled(0) == (0, 0)
    assert channel.settled(4)[1] > 0
    waiting = LinkClock(tmp_path, 2).channel("h", (0, 1))
    for _ in range(4):
        waiting.arrive(1)
    with pytest.raises(LynxError, match="more than 4 transfers"):
        waiting.arrive(1)


def test_sleep_until_never_returns_early():
    for wait_ns in (0, 50_000, 2_000_000):
        deadline = now_ns() + wait_ns
        sleep_until(deadline)
        assert now_ns() >= deadline


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What two ranks saw of every collective."""
    folder = tmp_path_factory.mktemp("link")
    mp.start_processes(_rank, (folder,), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"result{rank}", weights_only=True) for rank in range(2)]


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    recorder = Recorder()
    backend = register(Pace(link=LINK, clock=LinkClock(folder, 2), recorder=recorder))
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(backend, rank=rank, world_size=2, store=store, timeout=timedelta(seconds=60))
    second = dist.new_group([0, 1])
    result: dict = {"values": {}, "transfers": {}, "after": {}}
    for name, call in _calls(rank, second).items():
        recorder.start()
        value = call()
        result["after"][name] = now_ns()
        result["values"][name] = value
        result["transfers"][name] = [
            (t.kind, t.payload_bytes, t.launch_ns, t.start_ns, t.end_ns, t.blocked_ns) for t in recorder.stop()
        ]
    torch.save(result, folder / f"result{rank}")
    dist.barrier()
    dist.destroy_process_group()


def _calls(rank: int, second: dist.ProcessGroup) -> dict:
    world = dist.group.WORLD
    x = torch.full((COUNT,), float(rank + 1))
    pair = torch.cat((x, 10 * x))

    def functional(call):
        return lambda: funcol.wait_tensor(call())

    def in_place(call):
        def run():
            buffer = x.clone()
            call(buffer)
            return buffer

        return run

    def gathered(call):
        def run():
            output = torch.empty(2 * COUNT)
            call(output)
            return output

        return run

    def gather_list():
        parts = [torch.empty(COUNT) for _ in range(2)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    def scattered(call):
        def run():
            output = torch.empty(COUNT)
            call(output)
            return output

        return run

    def future():
        buffer = x.clone()
        work = dist.all_reduce(buffer, async_op=True)
        assert torch.equal(work.get_future().wait()[0], buffer)
        assert work.is_completed()
        return buffer

    def two_groups():
        works = [dist.all_reduce(x.clone(), group=group, async_op=True) for group in (world, second)]
        for work in works:
            work.wait()
        return torch.zeros(COUNT)

    def input_dies():
        source = 2 * pair
        alive = weakref.ref(source)
        output = funcol.reduce_scatter_tensor(source, "sum", 0, world)
        del source
        held = alive() is not None
        output = funcol.wait_tensor(output)
        return torch.tensor([held, alive() is not None])

    def send_receive():
        if rank == 0:
            dist.send(x, 1)
            return x
        buffer = torch.empty(COUNT)
        dist.recv(buffer, 0)
        return buffer

    return {
        "all_reduce": functional(lambda: funcol.all_reduce(x, "sum", world)),
        "all_reduce_coalesced": lambda: funcol.wait_tensor(funcol.all_reduce_coalesced([x], "sum", world)[0]),
        "all_gather": functional(lambda: funcol.all_gather_tensor(x, 0, world)),
        "reduce_scatter": functional(lambda: funcol.reduce_scatter_tensor(pair, "sum", 0, world)),
        "all_to_all": functional(lambda: funcol.all_to_all_single(pair, None, None, world)),
        "broadcast": functional(lambda: funcol.broadcast(x, 1, world)),
        "all_reduce in place": in_place(dist.all_reduce),
        "broadcast in place": in_place(lambda buffer: dist.broadcast(buffer, 1)),
        "all_gather list": gather_list,
        "all_gather_into_tensor": gathered(lambda output: dist.all_gather_into_tensor(output, x)),
        "reduce_scatter_tensor": scattered(lambda output: dist.reduce_scatter_tensor(output, pair.clone())),
        "all_to_all_single": gathered(lambda output: dist.all_to_all_single(output, pair)),
        "send": send_receive,
        "future": future,
        "two groups": two_groups,
        "input dies": input_dies,
        "barrier": lambda: dist.barrier() or torch.zeros(1),
    }


VALUES = {  # first and last element on rank 0, then on rank 1
    "all_reduce": (3, 3, 3, 3),
    "all_reduce_coalesced": (3, 3, 3, 3),
    "all_gather": (1, 2, 1, 2),
    "reduce_scatter": (3, 3, 30, 30),
    "all_to_all": (1, 2, 10, 20),
    "broadcast": (2, 2, 2, 2),
    "all_reduce in place": (3, 3, 3, 3),
    "broadcast in place": (2, 2, 2, 2),
    "all_gather list": (1, 2, 1, 2),
    "all_gather_into_tensor": (1, 2, 1, 2),
    "reduce_scatter_tensor": (3, 3, 30, 30),
    "all_to_all_single": (1, 2, 10, 20),
    "send": (1, 1, 1, 1),
    "future": (3, 3, 3, 3),
}
BYTES = 4 * COUNT
KINDS = {  # kind and full payload, by how the call's name begins
    "all_reduce": ("all_reduce", BYTES),
    "all_gather": ("all_gather", 2 * BYTES),
    "reduce_scatter": ("reduce_scatter", 2 * BYTES),
    "all_to_all": ("all_to_all", 2 * BYTES),
    "broadcast": ("broadcast", BYTES),
    "send": ("send", BYTES),
    "future": ("all_reduce", BYTES),
    "barrier": ("all_reduce", 0),
}


@pytest.mark.parametrize("name", VALUES)
def test_results_are_gloos(ranks, name):
    found = [float(rank["values"][name][place]) for rank in ranks for place in (0, -1)]
    assert tuple(found) == VALUES[name]


@pytest.mark.parametrize("name", [*VALUES, "barrier"])
def test_every_transfer_takes_the_links_time(ranks, name):
    kind, payload = next(KINDS[begin] for begin in KINDS if name.startswith(begin))
    (first,), (second,) = (rank["transfers"][name] for rank in ranks)
    for found, rank in ((first, ranks[0]), (second, ranks[1])):
        assert found[0] == ("recv" if kind == "send" and found is second else kind)
        assert found[1] == payload
        _, _, launch, start, end, _ = found
        assert launch <= start
        assert end - start == collective_ns(kind, 2, payload, LINK)
        assert rank["after"][name] >= end
    assert first[3:5] == second[3:5]  # both ranks see the same transfer
    assert first[3] >= max(first[2], second[2])


def test_two_groups_of_the_same_ranks_take_turns(ranks):
    for rank in ranks:
        one, other = rank["transfers"]["two groups"]
        assert other[2] < one[4]  # launched while the first was in flight
        assert other[3] >= one[4]


def test_an_input_lives_until_the_wait_and_no_longer(ranks):
    for rank in ranks:
        assert rank["values"]["input dies"].tolist() == [True, False]


def test_waiting_is_recorded(ranks):
    for rank in ranks:
        _, _, launch, _, _, blocked = rank["transfers"]["all_reduce in place"][0]
        assert 0 < blocked <= rank["after"]["all_reduce in place"] - launch
