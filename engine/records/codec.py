"""Records as bytes and back, with a version that is checked."""

from __future__ import annotations

import msgspec

from engine.records.answers import Ack, Compiled, Died, Ended, Gap, Loading, Notice, Ready, Refused, Status
from engine.records.commands import Command
from engine.records.steps import Between, Keyframe, StepRecord

SCHEMA = 5

Message = (
    StepRecord | Between | Keyframe | Loading | Ready | Ack | Refused | Status | Notice | Compiled | Gap | Died
    | Ended
)


class WrongSchema(ValueError):
    """Bytes that this version can't read, with both versions named."""


_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_commands = msgspec.msgpack.Decoder(Command)


class _Version(msgspec.Struct):
    v: int = SCHEMA


_version = msgspec.msgpack.Decoder(_Version)


def encode(record: Message | Command) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Message:
    """Raises WrongSchema for bytes of another version or of no version at all."""
    try:
        return _messages.decode(data)
    except msgspec.MsgspecError as error:
        raise WrongSchema(_explain(data, error)) from None


def decode_command(data: bytes) -> Command:
    """Raises WrongSchema."""
    try:
        return _commands.decode(data)
    except msgspec.MsgspecError as error:
        raise WrongSchema(_explain(data, error)) from None


def _explain(data: bytes, error: Exception) -> str:
    try:
        version = _version.decode(data).v
    except msgspec.MsgspecError:
        return f"these bytes are no Servescope record ({error})"
    if version == SCHEMA:
        return f"a damaged record of schema {SCHEMA} ({error})"
    return f"a record of schema {version}; this version reads schema {SCHEMA}"
