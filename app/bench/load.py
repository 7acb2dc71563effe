"""Load on an OpenAI-compatible server of this machine: prompts of token ids, greedy, streamed, exactly N tokens each.

The decode phase is counted as `servescope bench engine` counts it: from the moment the last stream had its first
token to the end. What comes is noted with its time and read after the load, so that this program takes little of the
cores that the server runs on. A chunk may hold several tokens; how many, the server says in each.
"""

from __future__ import annotations

import asyncio
import json
import random
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TypeVar

HOST = "127.0.0.1"  # servers that a bench starts listen nowhere else
MODEL = "m"  # the name that they serve their model under
LIMIT = 300.0  # s that one load may take
SETTLED = 8  # chunks that every stream has had before the newcomer arrives
NEWCOMER_TOKENS = 8  # new tokens of it: its first is what is measured
LOOK = 0.005  # s between looks at whether streams have settled
SPECIAL = 256  # lower ids are left out: many models keep their special tokens there

Result = TypeVar("Result")


class LoadFailed(Exception):
    """The server didn't give what was asked for; the message is for the user."""


@dataclass
class Stream:
    """One request's answer: when it was sent, and each event with its time (s, one clock)."""

    tokens: int  # that were asked for
    sent: float = 0.0
    events: list[tuple[float, bytes]] = field(default_factory=list)

    def counted(self) -> list[tuple[float, int]]:
        """(time, tokens so far), of events that brought tokens."""
        found: list[tuple[float, int]] = []
        have = 0
        for at, event in self.events:
            now = _tokens_so_far(event)
            if now > have:
                found.append((at, now))
                have = now
        if have != self.tokens:
            raise LoadFailed(f"a stream of {self.tokens} tokens ended after {have}")
        return found


def prompts(rng: random.Random, count: int, tokens: int, vocabulary: int) -> list[list[int]]:
    """Random ids, none shared, so that no prefix is cached and no draft is right."""
    low = SPECIAL if vocabulary > 4 * SPECIAL else 0
    return [[rng.randrange(low, vocabulary) for _ in range(tokens)] for _ in range(count)]


def decode_rate(port: int, texts: list[list[int]], new_tokens: int) -> float:
    """Output tokens/s over all streams in the decode phase."""

    async def load() -> list[Stream]:
        streams = [Stream(new_tokens) for _ in texts]
        async with asyncio.TaskGroup() as group:
            for stream, text in zip(streams, texts, strict=True):
                group.create_task(_complete(port, text, stream))
        return streams

    return rate([stream.counted() for stream in _bounded(load)])


def rate(streams: list[list[tuple[float, int]]]) -> float:
    """Tokens/s from the moment the last stream had its first token. Streams are (time, tokens so far)."""
    begin = max(stream[0][0] for stream in streams)
    end = max(stream[-1][0] for stream in streams)
    had = sum(stream[bisect_right([at for at, _ in stream], begin) - 1][1] for stream in streams if stream)
    if end <= begin:
        raise LoadFailed("all tokens came at once; the server didn't stream")
    return (sum(stream[-1][1] for stream in streams) - had) / (end - begin)


def prefill_rate(port: int, text: list[int]) -> float:
    """Prompt tokens/s until the first token of the answer."""

    async def load() -> Stream:
        stream = Stream(1)
        await _complete(port, text, stream)
        return stream

    stream = _bounded(load)
    return len(text) / (stream.counted()[0][0] - stream.sent)


def interference(port: int, texts: list[list[int]], new_tokens: int, newcomer: list[int]) -> dict[str, float]:
    """While `texts` decode, `newcomer` arrives: its time to first token and the others' worst gap from then on, ms."""

    async def load() -> tuple[list[Stream], Stream]:
        streams = [Stream(new_tokens) for _ in texts]
        late = Stream(NEWCOMER_TOKENS)
        async with asyncio.TaskGroup() as group:
            for stream, text in zip(streams, texts, strict=True):
                group.create_task(_complete(port, text, stream))
            while min(len(stream.events) for stream in streams) < SETTLED:
                await asyncio.sleep(LOOK)
            await _complete(port, newcomer, late)
        return streams, late

    streams, late = _bounded(load)
    times = [[at for at, _ in stream.counted()] for stream in streams]
    return gaps(times, late.sent, late.counted()[0][0])


def gaps(times: list[list[float]], arrival: float, first: float) -> dict[str, float]:
    """The figures of an interference, ms, from times in s of the other streams' tokens."""
    if min(stream[-1] for stream in times) < first:
        raise LoadFailed("a stream ended before the newcomer's first token; give the streams more new tokens")
    worst = max(b - a for stream in times for a, b in pairwise(stream) if b > arrival)
    return {"ttft_ms": round(1e3 * (first - arrival), 2), "worst_gap_ms": round(1e3 * worst, 2)}


def _bounded(load: Callable[[], Coroutine[None, None, Result]]) -> Result:
    """Run one load to its end. Raises LoadFailed in plain words, whatever went wrong underneath."""
    try:
        return asyncio.run(asyncio.wait_for(load(), LIMIT))
    except TimeoutError:
        raise LoadFailed(f"the server didn't finish a load within {LIMIT:.0f} s") from None
    except ExceptionGroup as group:
        error = group.exceptions[0]
    except (OSError, EOFError, ValueError, LoadFailed) as lone:
        error = lone
    if isinstance(error, LoadFailed):
        raise error from None
    raise LoadFailed(f"the server broke off: {str(error).strip() or type(error).__name__}") from None


async def _complete(port: int, text: list[int], stream: Stream) -> None:
    """One streamed completion. The extra fields: `usage` or `timings` in every chunk, and no reuse of old prompts."""
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": text,
            "max_tokens": stream.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "timings_per_token": True,
            "cache_prompt": False,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    stream.sent = perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        async for line in _lines(reader):
            if line.startswith(b"data: {"):
                stream.events.append((perf_counter(), line[6:]))
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a response's body. Raises LoadFailed for any status but 200."""
    status = await reader.readline()
    chunked = False
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        chunked |= name.lower() == "transfer-encoding" and "chunked" in value.lower()
    if b" 200" not in status:
        said = (await reader.read(2000)).decode(errors="replace")
        raise LoadFailed(" ".join(f"the server answered {status.decode('latin-1')} {said}".split())[:300])
    rest = b""
    async for part in _parts(reader, chunked):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line


async def _parts(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while chunked:
        size = int((await reader.readline()).partition(b";")[0], 16)
        part = await reader.readexactly(size)
        await reader.readexactly(2)
        if not size:
            return
        yield part
    while part := await reader.read(1 << 16):
        yield part


def _tokens_so_far(event: bytes) -> int:
    """vLLM says it in `usage`, llama.cpp in `timings`; 0 where an event says nothing."""
    said = json.loads(event)
    if "error" in said:
        raise LoadFailed(" ".join(f"the server answered {said['error']}".split())[:300])
    usage, timings = said.get("usage") or {}, said.get("timings") or {}
    return usage.get("completion_tokens") or timings.get("predicted_n") or 0
