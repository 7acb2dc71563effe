"""Text to ids and back, at the engine's border only: the core sees ids.

Loads a Hugging Face directory's tokenizer.json or builds the tokenizer that a GGUF file describes. Turns a
request into ids or says, as BadPrompt, what is wrong with it. Knows nothing of limits on length.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Library

from engine.model import gguf_tokenizer
from engine.model.chat_template import ChatTemplate, Message, TemplateProblem, plain_format
from engine.model.gguf_metadata import read_header
from engine.model.problem import ModelProblem
from engine.records import Request

# ends of a turn that checkpoints have as tokens but don't always name as such
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>")
MAX_STOPS = 64  # stop strings of one request; each is looked at for each character
MAX_STOP_LENGTH = 4096  # characters


class BadPrompt(Exception):
    """Why a request can't be turned into ids, with the remedy."""


class Tokenizer:
    """One model's vocabulary, its special tokens and its chat format."""

    def __init__(
        self,
        library: Library,
        eos_ids: frozenset[int],
        template: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
    ):
        self._library = library
        library.no_padding()
        library.no_truncation()
        self._bytes: dict[int, bytes] = {}
        self._style, self.drops_first_space = _decoder_style(library)
        self._special = {number for number, token in library.get_added_tokens_decoder().items() if token.special}
        ends = (library.token_to_id(token) for token in TURN_ENDS)
        self.eos_ids: frozenset[int] = eos_ids | {end for end in ends if end in self._special}
        self.vocabulary: int = library.get_vocab_size(with_added_tokens=True)
        self.notices: list[str] = []
        self._template = self._compile(template, bos_token, eos_token)
        if not self.eos_ids:
            self.notices.append(
                "The model names no end-of-sequence token: answers end at their length or a stop string."
            )

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From a .gguf file or a directory with tokenizer.json. Raises ModelProblem."""
        path = Path(path)
        if path.is_dir():
            return _from_directory(path)
        built = gguf_tokenizer.build(read_header(path).values, str(path))
        return cls(built.tokenizer, built.eos_ids, built.chat_template, built.bos_token, built.eos_token)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """`add_special`: with the beginning-of-sequence token where the model wants one. Raises BadPrompt."""
        try:
            return self._library.encode(text, add_special_tokens=add_special).ids
        except Exception as error:  # the library's own kind: a word that its vocabulary neither holds nor stands in for
            raise BadPrompt(f"the model's tokenizer can't take this prompt ({error}); type something else") from error

    def decode(self, ids: list[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=True)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text; nothing for a special or unknown one."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._bytes_of(token)
        return known

    @property
    def end(self) -> int:
        """One more than the highest id that a token has."""
        return 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)

    def spelling(self, token: int) -> bytes | None:
        """What stands at that id: a token's part of a text, or a special one's name; None: nothing does."""
        text = self._library.id_to_token(token)
        if text is None or token in self._special:
            return None if text is None else text.encode()
        return self.token_bytes(token)

    def render_chat(self, messages: list[Message]) -> str:
        """The text that asks for the assistant's answer. Raises BadPrompt."""
        if self._template is None:
            return plain_format(messages)
        try:
            return self._template.render(messages)
        except TemplateProblem as error:
            raise BadPrompt(f"{error}; send the prompt raw to leave the template out") from error

    def encode_request(self, request: Request) -> list[int]:
        """Raises BadPrompt."""
        _check_stops(request.stop)
        if request.token_ids is not None:
            if not request.token_ids:
                raise BadPrompt("the prompt has no tokens; give at least one")
            return list(request.token_ids)
        _check_unicode(request.prompt, "the prompt")
        _check_unicode(request.system, "the system message")
        if not request.prompt.strip():
            raise BadPrompt("the prompt is empty; type at least one word")
        if request.raw:
            ids = self.encode(request.prompt)
        else:
            messages = [{"role": "user", "content": request.prompt}]
            if request.system:
                messages.insert(0, {"role": "system", "content": request.system})
            # a template writes the beginning-of-sequence token itself
            text = self.render_chat(messages)
            _check_unicode(text, "what the chat template made")
            ids = self.encode(text, add_special=self._template is None)
        if not ids:
            raise BadPrompt("the model's vocabulary has no token for this prompt; type something else")
        return ids

    def _compile(self, source: str | None, bos_token: str, eos_token: str) -> ChatTemplate | None:
        if not source:
            self.notices.append("The model has no chat template: prompts are sent as 'User: … Assistant:'.")
            return None
        try:
            return ChatTemplate(source, bos_token, eos_token)
        except TemplateProblem as error:
            self.notices.append(f"Prompts are sent as 'User: … Assistant:', because {error}.")
            return None

    def _bytes_of(self, token: int) -> bytes:
        text = None if token in self._special or not 0 <= token < 1 << 32 else self._library.id_to_token(token)
        if text is None:
            return b""
        if self._style == "byte level":
            numbers = [_BYTES.get(character) for character in text]
            # an added token is text as it is where it isn't spelt in the byte alphabet
            return text.encode() if None in numbers else bytes(numbers)
        if self._style == "sentencepiece":
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                try:
                    return bytes([int(text[3:5], 16)])
                except ValueError:
                    pass  # looks like a byte and is none
            return text.replace("▁", " ").encode()
        return b" " + text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells each byte as one printable character: itself, or one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _decoder_style(library: Library) -> tuple[str, bool]:
    """How tokens are spelt, and whether a text's first space is left out. Raises ModelProblem."""
    if library.decoder is None:
        return "words", True
    state = json.loads(library.decoder.__getstate__())
    steps = {step["type"]: step for step in state.get("decoders", [state])}
    if "ByteLevel" in steps:
        return "byte level", False
    if "Metaspace" in steps:
        return "sentencepiece", steps["Metaspace"].get("prepend_scheme") != "never"
    if "ByteFallback" in steps or "Replace" in steps:
        return "sentencepiece", steps.get("Strip", {}).get("start", 0) > 0
    raise ModelProblem(
        f"the tokenizer puts text together by '{', '.join(steps)}', which is not known here; byte-level and "
        "SentencePiece tokenizers are"
    )


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadPrompt(
            f"{what} is no valid Unicode: character {error.start + 1} is half of a surrogate pair "
            f"(U+{ord(text[error.start]):04X}); remove it"
        ) from None


def _check_stops(stops: list[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise BadPrompt(f"{len(stops)} stop strings are too many; {MAX_STOPS} are allowed")
    for stop in stops:
        _check_unicode(stop, "a stop string")
        if not stop:
            raise BadPrompt("an empty stop string would end every answer at once; leave it out")
        if len(stop) > MAX_STOP_LENGTH:
            raise BadPrompt(f"a stop string of {len(stop):,} characters is too long; {MAX_STOP_LENGTH:,} are allowed")


def _from_directory(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelProblem(f"{path} holds no tokenizer.json; save it with a fast tokenizer (save_pretrained)")
    try:
        library = Library.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelProblem(f"{file} cannot be read: {error}; fetch it again") from error
    settings = _json(path / "tokenizer_config.json")
    bos, eos = (_content(settings.get(name)) for name in ("bos_token", "eos_token"))
    number = library.token_to_id(bos) if bos else None
    if settings.get("add_bos_token") and library.post_processor is None and number is not None:
        library.post_processor = gguf_tokenizer.prepend(bos, number)
    ends = {library.token_to_id(eos)} if eos else set()
    for name in ("generation_config.json", "config.json"):
        named = _json(path / name).get("eos_token_id")
        ends |= {end for end in (named if isinstance(named, list) else [named]) if isinstance(end, int)}
    ids = frozenset(end for end in ends if end is not None)
    return Tokenizer(library, ids, _template_of(path, settings), bos, eos)


def _template_of(path: Path, settings: dict) -> str | None:
    """A file of its own goes before the one in tokenizer_config.json, which may be several by name."""
    own = path / "chat_template.jinja"
    if own.is_file():
        try:
            return own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelProblem(f"{own} cannot be read: {error}") from error
    found = settings.get("chat_template") or _json(path / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = (entry.get("template") for entry in found if isinstance(entry, dict) and entry.get("name") == "default")
        found = next(named, None)
    return found if isinstance(found, str) else None


def _content(token: object) -> str:
    """A special token is a string, or an object that holds one."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _json(path: Path) -> dict:
    """An optional file's object; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelProblem(f"{path} cannot be read: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise ModelProblem(f"{path} holds no JSON object; fetch it again")
    return value
