"""What the model is told it said against what was heard: ``python -m benchmarks.heard_history``.

A reply is cut at a random moment of its playing; the next request to the language model shows what
the conversation believes was heard. The truth comes from the wire: how much of the reply's audio a
client with a 40 ms buffer had played, and which words lie in that much audio. Each word of a reply
is a sentence, so that the waveform's own pauses tell the words apart and no word time of the voice
is believed. Half of the cuts are told by ``conversation.item.truncate``, a quarter are barge-ins on
the wire of which the client tells nothing, and a quarter are replies that a sound without words cut
and that were taken up again (see `benchmarks.calls.cutting_caller`). Real server, embedded voice;
the language model is a stub that says given sentences, and where replies are taken up the
recognizer is one that hears no words.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.calls.cutting_caller import CuttingCaller, Kind, Played
from benchmarks.calls.told_models import SENTENCES, Told
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.harness.serving import served
from benchmarks.recognizer_bench import edit_distance
from clients.call.script import CALL_FOLDER
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.errors import ClientError
from clients.recording import Samples, read_flac
from clients.report.waveform import pauses, speech_end, speech_start
from clients.server_process import ServerProcess, running_server
from voiceloop.listening.recipes.synthetic_callers import words_of

KINDS: tuple[Kind, ...] = ("truncate", "barge_in", "resumed")
OF_FOUR: dict[Kind, int] = {"truncate": 2, "barge_in": 1, "resumed": 1}  # of four cuts
SPEECH = "heart/5_price.flac", "heart/7_interrupt.flac"  # without a pause; begins with "actually"
AT_ONCE = 4
EARLIEST_MS = 300.0
PAUSE_MS = 100.0  # between two sentences at least 270; within a word 30 at most
# Of the reply: later it may have ended by itself, before the voice was judged where there is one.
LATEST_SHARE, LATEST_BEFORE_END_MS = 0.95, 400.0


@dataclass(frozen=True, slots=True)
class Cut:
    """One reply that was cut: what was played, the words in it, and the words remembered."""

    kind: Kind
    sentence: int
    played_ms: Played
    heard: tuple[str, ...]
    remembered: tuple[str, ...]

    @property
    def off_by(self) -> int:
        """Words that are missing, too many or other ones."""
        return edit_distance(self.heard, self.remembered)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A reply as it sounds uncut; ``middles_ms`` of its words."""

    words: tuple[str, ...]
    middles_ms: tuple[float, ...]
    length_ms: float

    @classmethod
    def of(cls, audio: Samples, text: str) -> Sentence:
        """Raises: ClientError: there are more or fewer stretches of sound than words."""
        return cls(words_of(text), middles_of(audio, text), 1000.0 * len(audio) / RATE_HZ)

    def words_in(self, played_ms: Played) -> tuple[str, ...]:
        """Those whose middle was played, as often as it was."""
        begin_ms, end_ms = played_ms
        named = list(zip(self.words, self.middles_ms, strict=True))
        first = tuple(word for word, middle in named if middle <= begin_ms)
        return first + tuple(word for word, middle in named if middle > self.length_ms - end_ms)


def middles_of(audio: Samples, text: str) -> tuple[float, ...]:
    """The middle of each word in ms, by the pauses between them.

    Raises:
        ClientError: there are more or fewer stretches of sound than words.
    """
    breaks = pauses(audio, RATE_HZ, PAUSE_MS)
    starts = [speech_start(audio, RATE_HZ) or 0, *(end for _, end in breaks)]
    ends = [*(start for start, _ in breaks), speech_end(audio, RATE_HZ) or len(audio)]
    n_words = len(words_of(text))
    if len(starts) != n_words:
        raise ClientError(f"expected {n_words} words between pauses, found {len(starts)}: {text!r}")
    return tuple(500.0 * (start + end) / RATE_HZ for start, end in zip(starts, ends, strict=True))


async def measure(n_cuts: int, seed: int, cuts: list[Cut]) -> None:
    """Let the callers cut as many replies; ``cuts`` is filled one by one.

    Raises:
        ClientError: a server did not start or a call broke off.
    """
    told, chance, n_of = Told(), random.Random(seed), shares_of(n_cuts)
    async with served(told.app()) as stub:
        arguments = ("--preset", "embedded", "--llm-url", f"{stub}/v1")
        async with running_server(arguments, log=RESULTS / "heard_history.log") as server:
            sentences = await hear_sentences(server)
            for kind in ("truncate", "barge_in"):
                await cut_all(server, told, kind, places(chance, sentences, n_of[kind]), cuts)
        deaf = (*arguments, "--stt-url", f"{stub}/v1")
        async with running_server(deaf, log=RESULTS / "heard_history-deaf.log") as server:
            plan = places(chance, sentences, n_of["resumed"])
            await cut_all(server, told, "resumed", plan, cuts)


def shares_of(n_cuts: int) -> dict[Kind, int]:
    """How many of each kind; at least one, where there are as many."""
    n_of = {kind: max(1, n_cuts * OF_FOUR[kind] // 4) for kind in KINDS[1:]}
    return {"truncate": max(1, n_cuts - sum(n_of.values())), **n_of}


async def hear_sentences(server: ServerProcess) -> list[Sentence]:
    caller = await open_caller(server, "caller0", "truncate")
    sentences = [Sentence.of(await caller.whole(i), text) for i, text in enumerate(SENTENCES)]
    await caller.close()
    return sentences


Place = tuple[int, Sentence, float]  # which, what it is, and after how many ms it is cut


def places(chance: random.Random, sentences: Sequence[Sentence], n: int) -> list[Place]:
    found = []
    for _ in range(n):
        index = chance.randrange(len(sentences))
        length_ms = sentences[index].length_ms
        latest_ms = min(LATEST_SHARE * length_ms, length_ms - LATEST_BEFORE_END_MS)
        found.append((index, sentences[index], chance.uniform(EARLIEST_MS, latest_ms)))
    return found


async def cut_all(
    server: ServerProcess, told: Told, kind: Kind, plan: list[Place], cuts: list[Cut]
) -> None:
    """Each caller its share of the plan, all at once."""
    names = [f"caller{KINDS.index(kind)}{i}" for i in range(AT_ONCE)]
    callers = [await open_caller(server, name, kind) for name in names]
    await asyncio.gather(
        *(cut_replies(c, told, kind, plan[i::AT_ONCE], cuts) for i, c in enumerate(callers))
    )
    for caller in callers:
        await caller.close()


async def open_caller(server: ServerProcess, name: str, kind: Kind) -> CuttingCaller:
    spoken = read_flac(CALL_FOLDER / SPEECH[kind == "barge_in"]).at_rate(RATE_HZ).samples
    connection = await RealtimeConnection.open(server.url, key=own_key(server.url))
    caller = CuttingCaller(connection, name, kind, spoken)
    await caller.start()
    return caller


async def cut_replies(
    caller: CuttingCaller, told: Told, kind: Kind, plan: list[Place], cuts: list[Cut]
) -> None:
    for index, sentence, after_ms in plan:
        key, played_ms = await caller.cut(index, after_ms)
        if played_ms is None:
            continue
        remembered = told.remembered(key, await caller.go_on())
        heard = sentence.words_in(played_ms)
        cuts.append(Cut(kind, index, played_ms, heard, remembered))


def bars_of(cuts: Sequence[Cut], n_planned: dict[Kind, int]) -> list[Bar]:
    """A line for each kind, and one for the cuts that came about."""
    bars = []
    for kind in KINDS:
        off_by = [float(cut.off_by) for cut in cuts if cut.kind == kind]
        name = f"history against heard, worst by {kind}"
        bars.append(Bar(name, max(off_by, default=None), 1, "words", n=len(off_by)))
        made = 100.0 * len(off_by) / n_planned[kind]
        bars.append(Bar(f"replies cut as planned by {kind}", made, 90, "%", True))
    return bars


def off_by_counts(cuts: Sequence[Cut]) -> dict[int, int]:
    """How many cuts are off by how many words."""
    return dict(sorted(Counter(cut.off_by for cut in cuts).items()))


def main() -> int:
    command = Benchmark(
        "heard_history",
        "What the model is told it said against what was heard, of replies cut at random moments. "
        "A run that is interrupted writes the cuts made by then.",
        seed="the places where they are cut",
    )
    command.count(
        "--cuts", 200, f"replies that are cut, by {', '.join(KINDS)}", at_least=len(KINDS)
    )
    chosen = command.parse()
    cuts: list[Cut] = []
    command.measure(measure(chosen.cuts, chosen.seed, cuts))
    if not cuts:
        return command.without_results()
    counts = {kind: off_by_counts([c for c in cuts if c.kind == kind]) for kind in KINDS}
    for kind, of_it in counts.items():
        print(f"{sum(of_it.values())} cuts by {kind}; off by so many words: {of_it}")
    rows = [{**asdict(cut), "off_by": cut.off_by} for cut in cuts]
    bars = [] if command.partial else bars_of(cuts, shares_of(chosen.cuts))
    return command.finish({"cuts": chosen.cuts}, bars, off_by=counts, cuts=rows)


if __name__ == "__main__":
    sys.exit(run(main))
