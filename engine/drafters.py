"""From draft settings to the proposers that run a model: a checkpoint of its own, the target's first layers, or the
target's weights in fewer bits.

They are made between two steps of a running engine. Whatever is wrong with a draft, a file that isn't there or is
damaged, another vocabulary, no memory, is a refusal that says so, and nothing has changed then. Runs in the child only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.config import EngineConfig, LiveSettings, SettingRefused
from engine.memory import plainly, ran_out
from engine.model.cache import Progress, no_progress
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles, resolve
from engine.runner.base import OutOfDeviceMemory, Runner
from engine.runner.build import build_beside
from engine.runner.pooled import PooledRunner
from engine.speculation.draft_model import DraftModel
from engine.speculation.head import HeadProposer
from engine.speculation.head_model import HeadProblem, find
from engine.speculation.mixed import MixedProposer
from engine.speculation.proposer import Factory
from engine.speculation.suffix import SuffixProposer
from engine.speculation.vocabulary import difference
from engine.tokenizer import Tokenizer

# The draft's pool has room for so many sequences of so many tokens. What finds none isn't drafted for; a pool for
# max_batch × max_context would take more memory than the target's own, which doesn't hold that either.
SEQUENCES, TOKENS = 16, 1024

FLOATS = ("float32", "bfloat16")


class ModelDrafters:
    """For one target, its `runner`. `progress` is told how loading goes; a running engine has nobody to tell."""

    def __init__(self, config: EngineConfig, files: ModelFiles, runner: Runner, words: Tokenizer):
        self.progress: Progress = no_progress
        self._config, self._files, self._runner, self._words = config, files, runner, words
        self._last: Callable[[], Runner | None] = lambda: None  # the latest draft's, while it is in use
        self._made: tuple[str, object] = ("", None)  # by which method, and what of

    def factories(self) -> dict[str, Factory]:
        return {
            "model": self._model,
            "layers": self._layers,
            "bits": self._bits,
            "head": self._head,
            "mixed": lambda settings: MixedProposer(SuffixProposer.of(settings), self._head(settings)),
        }

    def absent(self) -> dict[str, str]:
        """Methods that this target can't have, and why."""
        no_head = self._no_head()
        reasons = {
            "layers": self._no_first_layers(),
            "bits": self._no_fewer_bits(),
            "head": no_head,
            "mixed": no_head,
        }
        return {method: why for method, why in reasons.items() if why}

    # --- the methods ---

    def _model(self, settings: LiveSettings) -> DraftModel:
        name = settings.draft_model.strip()
        if not name:
            raise SettingRefused(
                "draft_model",
                "no draft model is named; set draft_model to a directory, a .gguf file, a hub id or 'default' first",
            )
        with _refusing("draft_model", "the draft model can't be loaded"):
            return self._draft("model", name, settings, lambda: self._load_checkpoint(name), own_weights=True)

    def _layers(self, settings: LiveSettings) -> DraftModel:
        if why := self._no_first_layers():
            raise SettingRefused("draft_method", f"drafting with the first layers isn't possible: {why}")
        layers = settings.draft_layers or max(1, self._runner.model.layers // 4)
        with _refusing("draft_layers", f"the first {layers} layers can't be made a draft"):
            return self._draft("layers", layers, settings, lambda: self._runner.first(layers), own_weights=False)

    def _bits(self, settings: LiveSettings) -> DraftModel:
        if why := self._no_fewer_bits():
            raise SettingRefused("draft_method", f"drafting in fewer bits isn't possible: {why}")
        form = "int8" if "file" in self._runner.absent else "file"
        with _refusing("draft_method", "the weights in fewer bits can't be loaded"):
            return self._draft(
                "bits",
                form,
                settings,
                lambda: build_beside(self._config, self._files, form, self._room(), self.progress),
                own_weights=True,
            )

    def _head(self, settings: LiveSettings) -> HeadProposer:
        """It holds no cache, and its weights are a few MB: it is made anew each time."""
        runner = self._runner
        assert isinstance(runner, PooledRunner)
        try:
            weights = find(runner.final_norm, runner.model.vocabulary)
        except HeadProblem as problem:
            raise SettingRefused("draft_method", f"{problem}; take another draft_method") from None
        with _refusing("draft_method", "the trained head can't be loaded"):
            self.progress("making the draft head ready", 0, 0)
            steps = runner.head_steps(weights)
            draws = settings.draft_sampling == "probabilistic"
            return HeadProposer(steps, weights.vocabulary.numpy(), runner.model.vocabulary, runner.model.hidden, draws)

    # --- why not ---

    def _no_head(self) -> str:
        if not isinstance(self._runner, PooledRunner):
            return "this runner shows no hidden states; take another draft_method"
        try:
            find(self._runner.final_norm, self._runner.model.vocabulary)
        except HeadProblem as problem:
            return str(problem)
        return ""

    def _no_first_layers(self) -> str:
        return "" if self._runner.model.layers > 1 else "the model has one layer; take another draft_method"

    def _no_fewer_bits(self) -> str:
        held, absent = self._runner.model.dtype, self._runner.absent
        if held not in FLOATS:
            return f"the weights are in {held} already; take another draft_method, or start the engine in float32"
        return f"{absent['int8']}; take another draft_method" if {"file", "int8"} <= absent.keys() else ""

    # --- loading ---

    def _draft(
        self, method: str, made_of: object, settings: LiveSettings, load: Callable[[], Runner], own_weights: bool
    ) -> DraftModel:
        """Over the runner that is in use already where it is of the same weights: only how it drafts is new then."""
        made = method, made_of
        runner = self._last() if self._made == made else None
        if runner is None:
            runner = load()
            _give_pool(runner)
            self._last, self._made = weakref.ref(runner), made
        draws = settings.draft_sampling == "probabilistic"
        return DraftModel(runner, self._runner.model.vocabulary, draws, own_weights)

    def _load_checkpoint(self, name: str) -> Runner:
        files = resolve(name, self.progress)
        if files.tokenizer_path != self._files.tokenizer_path:
            found = difference(self._words, Tokenizer.load(files.tokenizer_path))
            if found is not None:
                raise SettingRefused(
                    "draft_model",
                    f"{files.name} has another vocabulary than {self._files.name}: {found}; take a draft model of the "
                    "target's own family, or another draft_method",
                )
        return build_beside(self._config, files, "auto", self._room(), self.progress)

    def _room(self) -> int:
        """Bytes that are free beside the target."""
        runner = self._runner
        return (runner.max_blocks() - runner.num_blocks) * runner.block_size * runner.model.kv_bytes_per_token


def _give_pool(runner: Runner) -> None:
    """Raises OutOfDeviceMemory where not even one sequence would have room."""
    size, longest = runner.block_size, min(TOKENS, runner.model.max_positions)
    least = -(-longest // size)
    fits = runner.max_blocks()
    if fits < least:
        per_block = size * runner.model.kv_bytes_per_token
        raise OutOfDeviceMemory(least * per_block, fits * per_block, what="its KV pool")
    runner.resize(min(SEQUENCES * least, fits))
    runner.warm_up()


@contextmanager
def _refusing(key: str, words: str) -> Iterator[None]:
    """What goes wrong within is a refusal of `key`: a running engine doesn't end for a draft, whatever is in its files.
    `words`: what can't be done."""
    try:
        yield
    except SettingRefused:
        raise
    except (ModelProblem, OutOfDeviceMemory) as error:
        raise SettingRefused(key, f"{words}: {error}") from None
    except Exception as error:
        if ran_out(error):
            why = f"memory ran out ({plainly(error)}); lower kv_blocks, or take a smaller draft"
        else:
            why = f"{type(error).__name__}: {error}; take another one"
        raise SettingRefused(key, f"{words}: {why}") from error
