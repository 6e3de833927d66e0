"""The stages that the tables are made of; all tables share them, so each is trained once per seed.

Every stage of block diffusion masks in the same way here, so that tables differ in nothing but what they are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.config import Precision, StageConfig
from training.config_file import load_stage
from training.reproduce import Scale

CONFIGS = Path(__file__).parents[1] / "configs"
CHAIN = ("b4", "b8", "b16", "b32")
LARGE_SHAPE: Mapping[Scale, Mapping[str, Any]] = {
    "debug": {"text_width": 96, "text_heads": 3, "text_mlp": 192},
    "nano": {"text_width": 256, "text_layers": 6, "text_heads": 8, "text_mlp": 704,
             "vision_width": 128, "vision_layers": 4, "vision_mlp": 512},
}
_MASKS = {"diffusion.full_share": 0.3, "diffusion.copies": 2, "diffusion.complementary": True,
          "diffusion.own_order": False}


@dataclass(frozen=True)
class Recipe:
    """One stage.

    Attributes:
        name: of its folder.
        file: configuration of the scale's folder that it is built on, without suffix.
        init: recipe whose weights it starts from; None for a fresh model.
        teacher: recipe that it learns from.
        length_of: files whose steps add up to its own; empty is `file`.
        lr_share: its learning rate as a share of the file's.
        large: a fresh model of the teacher's size.
        settings: further overrides, by dotted key.
    """

    name: str
    file: str
    init: str | None = None
    teacher: str | None = None
    length_of: tuple[str, ...] = ()
    lr_share: float = 1.0
    large: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def _recipes() -> Iterable[Recipe]:
    yield Recipe("ar", "ar")
    yield Recipe("ar_long", "ar", init="ar", length_of=CHAIN)
    yield Recipe("direct_b32", "b32", init="ar", length_of=CHAIN, settings=_MASKS)
    yield Recipe("b4", "b4", init="ar", settings=_MASKS)
    for before, size in zip(("b4", "chain_b8", "chain_b16"), ("b8", "b16", "b32"), strict=True):
        yield Recipe(f"chain_{size}", size, before, before, settings={
            **_MASKS, "stage": "block_distillation", "distillation.kd_ratio": 0.5,
        })
    yield Recipe("large_ar", "ar", large=True)
    for before, size in zip(("ar", *CHAIN), CHAIN, strict=False):
        yield Recipe(f"large_{size}", size, f"large_{before}", settings=_MASKS)
    # The paper's stage III has a twentieth of stage I's learning rate (table 9).
    cross = Recipe("cross_scale", "b32", "chain_b32", "large_b32", ("b8", "b16"), lr_share=0.05, settings={
        **_MASKS, "stage": "cross_scale", "distillation.on_policy.every": 1,
        "distillation.on_policy.denoising_steps": 8, "distillation.on_policy.max_new_tokens": 64,
    })
    yield cross
    for kind in ("forward_kl", "reverse_kl"):
        yield replace(cross, name=f"cross_scale_{kind}", settings={**cross.settings, "distillation.divergence": kind})
    yield replace(cross, name="cross_scale_ar_teacher", teacher="large_ar")


RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _recipes()}


def needed(names: Iterable[str]) -> list[Recipe]:
    """Recipes with all that they build on, each after what it builds on."""
    order: list[Recipe] = []

    def add(name: str) -> None:
        recipe = RECIPES[name]
        for other in (recipe.init, recipe.teacher):
            if other is not None:
                add(other)
        if recipe not in order:
            order.append(recipe)

    for name in names:
        add(name)
    return order


@lru_cache
def _loaded(file: Path) -> StageConfig:
    return load_stage(file)[0]


@dataclass(frozen=True)
class Workshop:
    """Where and at which length stages are trained.

    Attributes:
        out: folder of all stages and tables.
        scale: folder of configurations.
        data, validation: conversation files; None takes the configurations' own.
        steps: of the stage `ar`; the others keep their proportion to it. 0 takes the configurations' own.
        given: checkpoint folder by the name of a recipe that is not trained here, for all seeds.
        precision: of the training; None takes the configurations' own.
    """

    out: Path
    scale: Scale = "nano"
    data: Path | None = None
    validation: Path | None = None
    steps: int = 0
    given: Mapping[str, Path] = field(default_factory=dict)
    precision: Precision | None = None

    def trained(self, names: Iterable[str]) -> list[Recipe]:
        """Recipes with all that they build on, each after what it builds on, without what is given."""
        return [recipe for recipe in needed(names) if recipe.name not in self.given]

    def folder(self, name: str, seed: int) -> Path:
        """Folder of a stage."""
        return self.given.get(name) or self.out / "stages" / f"seed-{seed}" / name

    def _file(self, name: str) -> Path:
        return CONFIGS / self.scale / f"{name}.yaml"

    def validation_file(self) -> Path:
        """The file that tables are measured on."""
        return self.validation or Path(str(_loaded(self._file("ar")).data.validation))

    def configure(self, recipe: Recipe, seed: int) -> StageConfig:
        """The configuration of a stage.

        Nothing is chosen by a validation loss: every stage is measured after its last step.
        """
        base = _loaded(self._file(recipe.file))
        share = self.steps / _loaded(self._file("ar")).run.steps if self.steps else 1.0
        own = sum(_loaded(self._file(name)).run.steps for name in recipe.length_of or (recipe.file,))
        settings: dict[str, Any] = {
            "out": self.folder(recipe.name, seed),
            "run.seed": seed, "run.steps": max(1, round(own * share)), "run.keep": 1, "run.trackers": "[]",
            "data.validation": "null",
            "optimizer.lr": base.optimizer.lr * recipe.lr_share,
            "optimizer.warmup_steps": round(base.optimizer.warmup_steps * share),
            **recipe.settings,
        }
        settings["init"] = "null" if recipe.init is None else self.folder(recipe.init, seed)
        if recipe.teacher is not None:
            settings["distillation.teacher.checkpoint"] = self.folder(recipe.teacher, seed)
        if self.data is not None:
            settings["data.train"] = self.data
        if self.precision is not None:
            settings["run.precision"] = self.precision
        if recipe.large:
            settings |= {f"shape.{key}": value for key, value in LARGE_SHAPE[self.scale].items()}
        return load_stage(self._file(recipe.file), [f"--{key}={value}" for key, value in settings.items()])[0]
