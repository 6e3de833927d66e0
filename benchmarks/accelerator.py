"""Parity with `eager` and speed of every backend of an accelerator; `benchmarks/accelerator.sh` runs it.

Parity: answers of a small random model by strategy, sampled, within a grammar and under a deadline, then of a
checkpoint, in float32, where every token must be the same, and in bfloat16, where the share of equal tokens and the
distance of logits are told. Speed: what `wamdiff2 bench decode`, `prefill` and `plan` measure, for a checkpoint,
`tiny-qwen-vocab` and `2b`, with each backend, that is, with each attention kernel that is present; one layer's
attention alone, in the 2B shape; and `bench node`, where ROS is. All backends' rows of one
measurement turn about, and all their answers have the same length, so they can be divided by one another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

from tests.core.doubles import EOS, MASK, byte_tokenizer, random_inputs, tiny_model
from tests.core.grammar.walker import codec_of
from tests.core.standins.accelerator import FakeDevice
from tests.core.standins.libraries import fake_flashinfer, fake_torch_npu
from wamdiff2_core.bench import ladder
from wamdiff2_core.bench.machine import Floor, Machine, Rates, peak_memory_gib, synchronised
from wamdiff2_core.bench.parts import measure_parts, measure_plan, prefill_ratios, prefill_runs
from wamdiff2_core.bench.report import report
from wamdiff2_core.bench.subjects import Subject, checkpoint_subject, random_subject
from wamdiff2_core.chat import ModelInputs
from wamdiff2_core.config import DecodeConfig, PlanningTask
from wamdiff2_core.decode import Generator
from wamdiff2_core.decode.grammar import waypoint_language
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.backends import Backend, cuda, make_backend, npu
from wamdiff2_core.model.backends.device_ops import Graph
from wamdiff2_core.model.backends.graphed import Attention, GraphedBackend, Step, StepShape
from wamdiff2_core.model.block_model import BlockModel
from wamdiff2_core.model.checkpoint import read_model_config
from wamdiff2_core.model.devices import ACCELERATORS, find_accelerator
from wamdiff2_core.outputs import writable_file
from wamdiff2_core.serving_record import ServingRecord

ROOT = Path(__file__).resolve().parent.parent
BACKENDS = {"cuda": ("cuda", "cuda-flashinfer"), "npu": ("npu",)}
ALL_BACKENDS = tuple(name for names in BACKENDS.values() for name in names)
SUBJECTS = ("checkpoint", "tiny-qwen-vocab", "2b")
DTYPES = ("float32", "bfloat16")
NO_EOS = 2**31 - 1
# one head of 64, the smallest that paged kernels know
PARITY_SHAPE = {"head_dim": 64, "rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 8, 8], "mrope_interleaved": True,
}}
ATTENTION_2B = {"heads": 16, "key_heads": 8, "head_dim": 128}
CONTEXTS = (2190, 6270)  # one and three pictures of 1920 x 1080
LAYERS_A_GRAPH = 28
STOCK_ROWS = ("hf_ar", "naive_block")
OWN_ROWS = ("own_ar", "block")
NODE_S = 900
Case = tuple[list[ModelInputs], DecodeConfig, dict[str, Any]]  # and further arguments of `Generator.generate`
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Setting:
    """How much is done, and on what."""

    device: torch.device
    dry: bool
    rounds: int
    checkpoint: Path
    cases: int
    stand_ins: dict[str, FakeDevice]
    kept: dict[Any, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Backends of the device; all of them on stand-ins."""
        return ALL_BACKENDS if self.dry else BACKENDS[self.device.type]

    def backend(self, name: str, model: Any) -> Backend:
        """A backend for a model on the device; in a dry run on a stand-in, and the same one for the same model."""
        if not self.dry:
            return make_backend(name, model)
        if (name, id(model)) not in self.kept:
            self.kept[name, id(model)] = model, self._on_stand_in(name, model)
        backend: Backend = self.kept[name, id(model)][1]
        return backend

    def model(self, dtype: torch.dtype) -> Any:
        """The small random model; in a dry run the same one for the same dtype."""
        if not self.dry:
            return tiny_model(5, **PARITY_SHAPE).to(self.device, dtype)
        if dtype not in self.kept:
            self.kept[dtype] = tiny_model(5, num_hidden_layers=1, **PARITY_SHAPE).to(dtype)
        return self.kept[dtype]

    def _on_stand_in(self, name: str, model: Any) -> Backend:
        stand_in = self.stand_ins["npu" if name == "npu" else "cuda"]
        if name == "npu":
            return npu.NpuBackend(model, stand_in.ops(), fake_torch_npu(stand_in))
        if name == "cuda":
            return cuda.CudaBackend(model, stand_in.ops())
        return cuda.FlashInferBackend(model, stand_in.ops(), fake_flashinfer(stand_in))


def main() -> int:
    """Run everything; 0 when parity holds, 1 when it does not, 2 for wrong use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="on the CPU, with stand-ins and a tiny model")
    parser.add_argument("--device", choices=("auto", "cuda", "npu"), default="auto")
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "checkpoints/wamdiff2-nano")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=ROOT / "runs/accelerator.json")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        stand_ins = {kind: FakeDevice(kind) for kind in BACKENDS} if arguments.dry else {}
        for stand_in in stand_ins.values():
            stack.enter_context(stand_in.watching())
        return run(arguments, stand_ins)


def run(arguments: argparse.Namespace, stand_ins: dict[str, FakeDevice]) -> int:
    """Check, measure and write."""
    try:
        device = torch.device("cpu") if arguments.dry else find_device(arguments.device)
        if arguments.rounds < 1:
            raise UserError("rounds", "an integer >= 1", arguments.rounds)
        read_model_config(arguments.checkpoint)  # told now, not after what is measured before it
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        writable_file(arguments.json, "json")
        setting = Setting(
            device, arguments.dry, 1 if arguments.dry else arguments.rounds, arguments.checkpoint,
            1 if arguments.dry else 8, stand_ins,
        )
        result = measure(setting)
    except UserError as error:
        print(error)
        return 2
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{arguments.json}: parity {'holds' if result['parity_holds'] else 'FAILS'}")
    return 0 if result["parity_holds"] else 1


def find_device(kind: str) -> torch.device:
    """The first accelerator of that kind, or of any for `auto`.

    Raises:
        UserError: there is none.
    """
    name = find_accelerator(ACCELERATORS if kind == "auto" else (kind,))
    if name is not None:
        return torch.device(name, 0)
    wanted = "a CUDA or Ascend device" if kind == "auto" else f"a {kind} device"
    raise UserError("device", wanted, "none on this machine", "add --dry to try the command without one")


def measure(setting: Setting) -> dict[str, Any]:
    """All of the JSON."""
    torch.backends.cuda.matmul.allow_tf32 = False  # parity in float32 means it
    device = setting.device
    parity = [*random_parity(setting), *checkpoint_parity(setting)]
    module = None if setting.dry else getattr(torch, device.type)
    result: dict[str, Any] = {
        "dry": setting.dry, "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
        "card": "none: stand-ins on the CPU" if module is None else module.get_device_name(device),
        "torch": torch.__version__, "rounds": setting.rounds, "parity": parity,
        "parity_holds": all(row["holds"] for row in parity), "decode": {}, "prefill": {}, "plan": {},
    }
    for name in SUBJECTS:
        say(f"speed: {name}")
        result["decode"][name], result["prefill"][name] = speed(setting, name)
    result["plan"] = plan(setting)
    say("attention")
    result["attention"] = attention(setting)
    say("speed: node")
    result["node"] = node(setting)
    return result


def random_parity(setting: Setting) -> Iterator[dict[str, Any]]:
    """Answers of random requests to a small random model."""
    requests = [[random_inputs(1, 9), random_inputs(2, 21, ((2, 4), (4, 4)))], [random_inputs(3, 40)]]
    configs = [
        DecodeConfig(size, size, strategy, 0.2, max_new_tokens=2 * size + 1)
        for size in ((4,) if setting.dry else (4, 8, 32))
        for strategy in (("low_confidence_dynamic",) if setting.dry
                         else ("sequential", "low_confidence_static", "low_confidence_dynamic"))
    ]
    one_a_step = DecodeConfig(8, 8, "low_confidence_static", max_new_tokens=8 if setting.dry else 40)
    grammar = waypoint_language(codec_of(byte_tokenizer(), EOS), PlanningTask(waypoints=1 if setting.dry else 6))
    answer = -(-(grammar.shortest[0] + 4) // 8) * 8
    ways: dict[str, list[Case]] = {
        "random": [(batch, config, {}) for config in configs for batch in requests],
        "random, sampled": [
            (batch, replace(one_a_step, temperature=0.8, top_p=0.9, seed=seed), {"candidates": 2})
            for batch in requests for seed in range(setting.cases)
        ],
        "random, within a grammar": [
            (batch, replace(one_a_step, grammar="task", max_new_tokens=answer), {"grammars": [grammar] * len(batch)})
            for batch in requests
        ],
        # an hour, which changes nothing; and less than there is, so that each block takes one step, whatever the speed
        "random, under a deadline": [
            (batch, replace(one_a_step, deadline_ms=limit), {}) for batch in requests for limit in (3.6e6, 1e-6)
        ],
    }
    for dtype in DTYPES:
        model = setting.model(getattr(torch, dtype))
        for way, cases in ways.items():
            for name in setting.names:
                yield compared(setting, name, way, model, MASK, cases)


def checkpoint_parity(setting: Setting) -> Iterator[dict[str, Any]]:
    """Answers of a checkpoint to its own prompt; in a dry run, of the small model."""
    for dtype in DTYPES:
        subject = subject_of(setting, "checkpoint", getattr(torch, dtype))
        config = replace(subject.decode, max_new_tokens=5 if setting.dry else subject.decode.max_new_tokens)
        for name in setting.names:
            yield compared(
                setting, name, subject.name, subject.model, subject.mask_token_id,
                [(list(subject.prompts), config, {})] * setting.cases,
            )


def compared(
    setting: Setting, name: str, what: str, model: Any, mask: int, cases: Sequence[Case],
) -> dict[str, Any]:
    """One backend against `eager`."""
    row: dict[str, Any] = {
        "backend": name, "model": what, "dtype": str(model.dtype).removeprefix("torch."), "missing": None,
        "answers": 0, "equal_answers": 0, "tokens": 0, "equal_tokens": 0, "logit_distance": None, "holds": True,
    }
    say(f"parity: {name}, {what}, {row['dtype']}")
    try:
        backend = setting.backend(name, model)
    except UserError as error:
        return row | {"missing": str(error)}
    record = ServingRecord(mask_token_id=mask, eos_token_id=NO_EOS)
    own, eager = (
        Generator.of(model, None, record, enforce_record=False, backend=which) for which in (backend, "eager")
    )
    for requests, config, more in cases:
        pairs = zip(own.generate(requests, config, **more), eager.generate(requests, config, **more), strict=True)
        for answer, expected in pairs:
            row["answers"] += 1
            row["equal_answers"] += answer.raw_ids == expected.raw_ids
            row["tokens"] += len(expected.raw_ids)
            row["equal_tokens"] += sum(map(int.__eq__, answer.raw_ids, expected.raw_ids))
    row["logit_distance"] = logit_distance(own.blocks, eager.blocks, cases[0][0], mask)
    row["holds"] = model.dtype != torch.float32 or row["equal_answers"] == row["answers"]
    return row


@torch.inference_mode()
def logit_distance(own: BlockModel, eager: BlockModel, requests: list[ModelInputs], mask: int) -> float:
    """Largest difference of logits, by their standard deviation, of a first step and of one that commits."""
    size, worst = 4, 0.0
    tokens = torch.full((len(requests), size), mask, device=own.device)
    for model in (own, eager):
        model.prefill(requests, size, 2 * size)
    for ids, commit in ((tokens, 0), (torch.cat([tokens, tokens], 1), size)):
        new, old = (model.logits(model.forward(ids, 0, commit)) for model in (own, eager))
        worst = max(worst, float((new - old).abs().max() / old.std()))
    return worst


def subject_of(setting: Setting, name: str, dtype: torch.dtype | None = None) -> Subject:
    """What is measured; in a dry run, the small model under every name."""
    if setting.dry:
        started = time.perf_counter()
        model = setting.model(dtype or torch.bfloat16)
        return Subject(
            f"{name} (dry: a tiny model)", model, [random_inputs(1, 9, ((2, 4),))], MASK, NO_EOS,
            DecodeConfig(4, 2, "low_confidence_static"), None, (time.perf_counter() - started) * 1e3, 5,
        )
    if name == "checkpoint":
        return checkpoint_subject(setting.checkpoint, str(setting.device), dtype)
    return random_subject(name, str(setting.device), dtype)


def speed(setting: Setting, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reports of `bench decode` and `bench prefill` by backend; ratios over stock rows, and over `eager`'s."""
    subject = subject_of(setting, name, torch.bfloat16)
    device = subject.device
    rates = Rates.measure(device, subject.model.dtype, *((1, 64) if setting.dry else ()))
    sizes = [subject.decode.block_size] if setting.dry else ladder.allowed_sizes(subject.record, [], False)
    missing: dict[str, Any] = {}
    ways: dict[str, Subject] = {}
    for backend in ("eager", *setting.names):
        try:
            ways[backend] = replace(
                subject, backend=backend if backend == "eager" else setting.backend(backend, subject.model)
            )
        except UserError as error:
            missing[backend] = {"missing": str(error)}
    floor = Floor(subject.model, rates)
    lengths: list[int] = []
    firsts: dict[str, float] = {}
    for backend, way in ways.items():
        own, firsts[backend] = ladder.answer_lengths(way, way.decode)
        lengths = lengths or own
    rungs = {
        backend: ladder.make_rungs(way, lengths, sizes, STOCK_ROWS + OWN_ROWS if backend == "eager" else OWN_ROWS)
        for backend, way in ways.items()
    }
    rows = in_turn(
        rungs, lambda every: ladder.climb(subject, every, lengths, setting.rounds, lambda _: floor)
    )
    words = [8] if setting.dry else [64, 128, 256, 512]
    runs = {
        backend: [run for run in prefill_runs(way, words, floor) if backend == "eager" or run.name != "hf_prefill"]
        for backend, way in ways.items()
    }
    parts = in_turn(runs, lambda every: measure_parts(every, setting.rounds, device))
    decode, prefill = dict(missing), dict(missing)
    stock = [row for row in rows["eager"] if row.name in STOCK_ROWS]
    stock += [replace(row, name="block_eager") for row in rows["eager"] if row.name == "block"]
    stock_parts = [row for row in parts["eager"] if row.name == "hf_prefill"]
    facts: dict[str, Any] = {
        "dtype": str(subject.model.dtype).removeprefix("torch."), "rounds": setting.rounds,
        "peak_memory_gib": peak_memory_gib(device),
    }
    for backend in ways:
        upper = [] if backend == "eager" else stock
        warm_up = [ladder.Row("load", None, subject.load_ms), ladder.Row("first_answer", None, firsts[backend])]
        decode[backend] = report(
            subject.name, [*warm_up, *rows[backend]], Machine.of(device), ladder.ratios_of([*upper, *rows[backend]]),
            rates, answer_tokens=lengths, backend=backend, **facts,
        )
        prefill[backend] = report(
            subject.name, parts[backend], Machine.of(device), prefill_ratios([*stock_parts, *parts[backend]]), rates,
            backend=backend, **facts,
        )
    return decode, prefill


def in_turn(groups: dict[str, list[T]], measure: Callable[[list[T]], list[R]]) -> dict[str, list[R]]:
    """Measure the members of all groups in one go, which takes them turn about; results by group."""
    results = iter(measure([member for members in groups.values() for member in members]))
    return {name: [next(results) for _ in members] for name, members in groups.items()}


def plan(setting: Setting) -> dict[str, Any]:
    """Report of `bench plan`, with the backend that `auto` chooses; in a dry run it is the CPU's."""
    say("speed: plan")
    rows, _ = measure_plan(setting.checkpoint, setting.rounds, str(setting.device), None)
    return report(
        str(setting.checkpoint.name), rows, Machine.of(setting.device), {}, rounds=setting.rounds,
        peak_memory_gib=peak_memory_gib(setting.device),
    )


def node(setting: Setting) -> dict[str, Any]:
    """Report of `bench node`; what is missing for it, where ROS is not installed."""
    if find_spec("rclpy") is None:
        return {"missing": "ROS 2 (rclpy)"}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "node.json"
        frames = "3" if setting.dry else "200"
        command = [
            sys.executable, "-m", "wamdiff2_core.cli.main", "bench", "node", str(setting.checkpoint), "--device",
            str(setting.device), "--frames", frames, "--log", str(Path(folder) / "node.log"), "--json", str(file),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=NODE_S)
        if done.returncode:
            return {"missing": (done.stderr or done.stdout).strip().splitlines()[-1:]}
        result: dict[str, Any] = json.loads(file.read_text())
        return result


@torch.inference_mode()
def attention(setting: Setting) -> list[dict[str, Any]]:
    """Milliseconds of one layer's attention in the 2B shape, in a graph of its own, by kernel, context and rows."""
    rows = []
    for context in (100,) if setting.dry else CONTEXTS:
        for count, commit in ((32, 0), (64, 32)):
            graphs: dict[str, AttentionGraph] = {}
            missing: dict[str, str] = {}
            for name in setting.names:
                try:
                    graphs[name] = attention_graph(setting, name, context, count, commit)
                except UserError as error:
                    missing[name] = str(error)
            times: dict[str, list[float]] = {name: [] for name in graphs}
            names = list(graphs)
            for turn in range(setting.rounds + 1):
                for step in range(len(names)):
                    name = names[(turn + step) % len(names)]
                    times[name].append(graphs[name].replay_ms())
            for name in setting.names:
                median = float(np.median(times[name][1:])) / graphs[name].layers if name in graphs else None
                rows.append({
                    "backend": name, "context": context, "tokens": count, "ms_a_layer": median,
                    "missing": missing.get(name),
                })
    return rows


@dataclass(frozen=True)
class AttentionGraph:
    """Attention of some layers as a graph, and what it was recorded from, whose memory it reads and writes."""

    backend: GraphedBackend
    graph: Graph
    shape: StepShape
    layers: int
    body: Callable[[], None]

    def replay_ms(self) -> float:
        """Time of a replay of all layers."""
        self.backend.attention.before_replay(self.backend.ops, self.graph, self.shape)
        started = synchronised(self.backend.device)
        self.graph.replay()
        finished(self.backend)
        return (synchronised(self.backend.device) - started) * 1e3


def attention_graph(setting: Setting, name: str, context: int, count: int, commit: int) -> AttentionGraph:
    """Record one."""
    sizes = ATTENTION_2B
    heads = {"num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["key_heads"]}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    model = tiny_model(0, head_dim=sizes["head_dim"], rope_parameters=rope, **heads)
    backend = setting.backend(name, model.to(setting.device, torch.bfloat16))
    assert isinstance(backend, GraphedBackend)
    kernel: Attention = backend.attention
    columns = -(-(context + count + 1) // 256) * 256
    shape = StepShape(1, count, commit, columns, columns)
    layers = 1 if setting.dry else LAYERS_A_GRAPH

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device=setting.device)

    query = random(1, count, sizes["heads"], sizes["head_dim"])
    # a cache for each layer, so that none is read from the last level of the device's own
    cache = random(layers, 2, 1, columns, sizes["key_heads"], sizes["head_dim"])
    out = torch.zeros(1, count, sizes["heads"] * sizes["head_dim"], dtype=torch.bfloat16, device=setting.device)
    ends = torch.full((1, count), context + count, device=setting.device)
    ends[:, :commit] = context + commit
    kernel.plan(shape, ((context + commit, context + count) if commit else (context + count,),))

    def body() -> None:
        step = Step(shape, ends, kernel.begin(Step(shape, ends)))
        for keys, values in cache:
            out.copy_(kernel.attend(query, keys, values, step))

    return AttentionGraph(backend, backend.ops.capture(body, kernel.host_values), shape, layers, body)


def finished(backend: GraphedBackend) -> None:
    """Wait for the device by its own event."""
    event = backend.ops.event()
    event.record()
    event.synchronize()


def commit() -> str | None:
    """Of the checkout; None outside one."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def say(text: str) -> None:
    """Progress on the terminal."""
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
