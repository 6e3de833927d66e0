"""The tables: which stages are compared, by which figures, and what the paper has in their place.

The paper's figures are those of arXiv 2608.01035, of models of 2B and 8B parameters on other data sets: orderings can
be compared with them, values cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["open_loop", "overlap", "speed"]


@dataclass(frozen=True)
class Metric:
    """One column.

    Attributes:
        key: of a measurement.
        title: of the column, with its unit.
        lower: whether a lower figure is better.
        paper: title of the paper's figure that stands beside it; empty for none.
        paper_lower: whether a lower one is better there.
    """

    key: str
    title: str
    lower: bool = False
    paper: str = ""
    paper_lower: bool = False


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        label: of the line.
        stage: recipe that is measured.
        decode: fields of `DecodeConfig` instead of the record's.
        paper: the paper's figures, by key of our metric.
    """

    label: str
    stage: str
    decode: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """One table or figure.

    Attributes:
        name: what it is asked for by.
        source: where it is in the paper.
        title: what it is about.
        kind: how rows are measured.
        metrics, rows: columns and lines.
        note: the paper's statement where it gives no figures.
    """

    name: str
    source: str
    title: str
    kind: Kind
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    note: str = ""


L2 = Metric("l2_all_m", "L2 of all answers, m", lower=True)
READ = Metric("l2_mean_m", "L2 of readable answers, m", lower=True)
UNREADABLE = Metric("unreadable", "unreadable, share", lower=True)
PDMS = Metric("l2_all_m", "L2 of all answers, m", lower=True, paper="PDMS")
OVERLAPS = tuple(Metric(f"overlap_{k}", f"top-{k} overlap, %", paper=f"rho_{k}, %") for k in (1, 5, 10, 20))
# Static decoding: a budget of steps is used up, whatever the model is sure of.
STEPS = (1, 2, 4, 8, 16, 32)


def _step_row(steps: int) -> Row:
    return Row(str(steps), "chain_b32", {"strategy": "low_confidence_static", "denoising_steps": steps})


TABLES: Mapping[str, Table] = {table.name: table for table in (
    Table(
        "adaptation", "table 4", "from an autoregressive parent to blocks of 32", "open_loop", (PDMS, READ, UNREADABLE),
        (
            Row("AR parent", "ar", paper={"l2_all_m": 88.1}),
            Row("AR, trained on as long", "ar_long"),
            Row("direct adaptation", "direct_b32", paper={"l2_all_m": 84.1}),
            Row("block-wise", "chain_b32", paper={"l2_all_m": 87.7}),
            Row("block-wise, cross-scale", "cross_scale", paper={"l2_all_m": 88.3}),
        ),
    ),
    Table(
        "divergence", "table 5", "divergence of cross-scale distillation", "open_loop", (PDMS, READ, UNREADABLE),
        (
            Row("forward KL", "cross_scale_forward_kl", paper={"l2_all_m": 88.2}),
            Row("reverse KL", "cross_scale_reverse_kl", paper={"l2_all_m": 88.0}),
            Row("JSD", "cross_scale", paper={"l2_all_m": 88.3}),
        ),
    ),
    Table(
        "overlap", "table 6", "top-K overlap of student and teacher on the student's own states", "overlap", OVERLAPS,
        (
            Row("AR teacher", "cross_scale_ar_teacher",
                paper={"overlap_1": 83.6, "overlap_5": 51.2, "overlap_10": 54.3, "overlap_20": 46.1}),
            Row("diffusion teacher", "cross_scale",
                paper={"overlap_1": 84.8, "overlap_5": 58.2, "overlap_10": 60.5, "overlap_20": 50.7}),
        ),
    ),
    Table(
        "teacher", "table 7", "teacher of cross-scale distillation", "open_loop", (PDMS, READ, UNREADABLE),
        (
            Row("AR teacher", "cross_scale_ar_teacher", paper={"l2_all_m": 79.9}),
            Row("diffusion teacher", "cross_scale", paper={"l2_all_m": 88.3}),
        ),
    ),
    Table(
        "horizon", "figure 6", "distance by waypoint, of answers that every row can read", "open_loop",
        (Metric("l2_paired_m", "L2, m", lower=True, paper="L2, m", paper_lower=True),),
        (
            Row("AR", "ar", paper={"l2_paired_m": 0.5935}),
            Row("AR, trained on as long", "ar_long"),
            Row("B32", "chain_b32", paper={"l2_paired_m": 0.5589}),
        ),
        "the gain of B32 over AR grows along the horizon, from 0.002 m at the first waypoint to 0.082 m at the eighth",
    ),
    Table(
        "steps", "figure 2", "quality by denoising steps a block", "open_loop", (L2, READ, UNREADABLE),
        tuple(_step_row(steps) for steps in STEPS), "quality saturates at 8 to 16 steps",
    ),
    Table(
        "speed", "table 1 and figure 3", "quality and speed by block size", "speed",
        (
            Metric("l2_all_m", "L2 of all answers, m", lower=True, paper="PDMS"), UNREADABLE,
            Metric("tokens_per_forward", "tokens a forward"),
            Metric("ms", "ms an answer", lower=True),
            Metric("tokens_per_s", "tokens a second", paper="TPS"),
        ),
        (
            Row("1 (AR)", "ar", paper={"l2_all_m": 88.14, "tokens_per_s": 44.5}),
            Row("4", "b4", paper={"l2_all_m": 87.87, "tokens_per_s": 68.3}),
            Row("8", "chain_b8", paper={"l2_all_m": 87.57, "tokens_per_s": 89.5}),
            Row("16", "chain_b16", paper={"l2_all_m": 87.32, "tokens_per_s": 108.4}),
            Row("32", "chain_b32", paper={"l2_all_m": 87.44, "tokens_per_s": 124.8}),
        ),
    ),
)}
