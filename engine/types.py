"""Owns what crosses the engine's border: configuration, sampling parameters, events and errors.

Everything here is immutable and free of torch, so that a worker can build and match on it cheaply.
Errors are plain sentences of the form "expected X, found Y".
"""

from dataclasses import dataclass, field
from pathlib import Path

BLOCK_TOKENS = 16  # tokens in one KV block: small enough to share most of a turn's prefix
MAX_AHEAD_TOKENS = 16  # of a sequence: two steps of 8 rows (`graphs.graph_runner`)
MAX_SALVAGED = 63  # tokens of a preemptive reply, verified in the step of a changed prompt
DTYPES = ("bf16", "fp32", "fp64")
QUANTS = (None, "int8", "int4")
MAX_LOGPROBS = 20  # OpenAI's own limit
KV_FORMAT_NAMES = ("plain", "int8")


def n_blocks_for(n_tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-n_tokens // BLOCK_TOKENS)


def pool_tokens_for(n_tokens: int, n_ahead: int = MAX_AHEAD_TOKENS) -> int:
    """Size of the KV pool that holds a prompt and reply of this many tokens, in whole blocks.

    n_ahead: tokens that a runner computes ahead of a sequence; without it, for any runner.
    """
    # A block more than the tokens need: a shared one may have to be copied.
    return (n_blocks_for(n_tokens + n_ahead) + 1) * BLOCK_TOKENS


class EngineError(Exception):
    """Root of everything the engine raises on purpose."""


class ConfigError(EngineError):
    """An engine setting is unknown or out of range."""


class CheckpointError(EngineError):
    """A model folder misses a file, or a file is not what it should be."""


class UnsupportedArchitecture(CheckpointError):
    """The checkpoint is of a model family or variant this engine does not know."""


class UnsupportedQuantization(CheckpointError):
    """The checkpoint's quantization format is not one the engine reads."""


class MissingTensor(CheckpointError):
    """A tensor the architecture needs is not in the checkpoint."""


class WrongShape(CheckpointError):
    """A tensor of the checkpoint has not the shape its config implies."""


class TemplateError(EngineError):
    """The chat template is absent, does not compile, or refused the messages."""


class RequestError(EngineError):
    """One request is at fault; no other request is hurt by it."""


class PromptTooLong(RequestError):
    """Prompt and reply together exceed the context length."""


class OutOfMemory(RequestError):
    """The KV pool can never hold this request, even with everything else gone."""


class InvalidRequest(RequestError):
    """A parameter of the request is out of range, or the branch is in no state to take it."""


class GrammarError(RequestError):
    """A grammar or JSON schema cannot be compiled."""


class NotANumber(EngineError):
    """A reply's next logits hold NaN or infinity: the model or its keys and values are at fault."""


class DeviceFault(EngineError):
    """A failure of the device that runs the model, at load or in service; nothing it holds may be
    used.

    kind: "launch" (what a compiler, a launch, a capture or a kernel raised), "memory" or "nan"
    (reply after reply is no number).
    """

    def __init__(self, message: str, kind: str = "launch") -> None:
        super().__init__(message)
        self.kind = kind


class LateCompilation(DeviceFault):
    """A kernel was launched in a form that nobody launched before the engine was ready."""


class IntegrityError(EngineError):
    """The KV bookkeeping contradicts itself: a bug in the engine, never the caller's fault."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings to load and run one model.

    dtype: what activations and KV are computed in; "fp32" and "fp64" are for tests.
    quant: weight quantization on load; None keeps the weights in `dtype`.
    kv_format: how keys and values are stored, "plain" being the compute dtype.
    kv_tokens: size of the KV pool; `pool_tokens_for` tells what one conversation needs.
    kv_memory_share: above 0, the pool's size instead on a GPU: this share of its memory that is
        free once the weights are read, and no more than all branches could use.
    context_length: upper bound on prompt + reply; None takes the checkpoint's.
    threads: torch's intra-op threads; 1 is steadiest beside other processes.
    step_tokens: most tokens one step extends, the bound on a committed prefill chunk.
    background_tokens: the same for staged and preemptive prefill, which a commit must not
        wait for long.
    step_budget_ms: chunks shrink below those bounds so that a step is predicted to end in time.
    share_steps: let preemptive rows ride in steps that also serve committed turns
        (nearly free on a GPU, costly on a CPU).
    preemptive_tokens: most tokens of one preemptive reply; how many there are is the gateway's.
    prefix_cache: share committed prefixes between branches of the same salt.
    kv_spare_bytes: on a CPU, memory beyond `kv_tokens` for conversations that nobody is in now.
    adapter_dir: a PEFT folder of low-rank changes (LoRA), merged into the weights on load; its
        chat template and end-of-turn head, where it has them, take the model's place.
    adapters: PEFT folders that branches name: such changes beside the weights, the rows of several
        in one step. With one chat template together, if they have any, and no `adapter_dir`.
    draft_dir: folder of a small model with the same tokenizer, for speculative decoding.
    route_file: a head that reads of staged words which model their answer needs; None: none does.
    eagle_dir: folder of an EAGLE-3 head that was trained for the model; it alone drafts, beside
        what grammars force.
    ngram_draft: draft from the conversation itself.
    max_draft_tokens: upper bound on the adaptive number of drafted tokens; 0 turns drafting off.
        With the token before them, 7 are the 8 rows of one native pass.
    kernels: on a GPU run Triton's kernels; else plain torch, whose weights are dense.
    native: on a CPU run int8 and int4 layers by the compiled library, where there is a compiler
        or a library already; else, and for any other weights, by torch.
    packed_file_bytes: disk in the user's cache for weights as the library reads them, of a large
        model; 0: none are kept.
    poison: fill freed KV with NaN, so that any use of it shows (tests).
    """

    dtype: str = "bf16"
    quant: str | None = None
    device: str = "cpu"
    kv_format: str = "plain"
    kv_tokens: int = 32768
    kv_memory_share: float = 0.0
    context_length: int | None = None
    max_branches: int = 64
    threads: int = 1
    seed: int = 0
    step_tokens: int = 512
    background_tokens: int = 128
    step_budget_ms: float = 10.0
    share_steps: bool = False
    preemptive_tokens: int = 256
    prefix_cache: bool = True
    kv_spare_bytes: int = 0
    adapter_dir: Path | None = None
    adapters: tuple[Path, ...] = ()
    draft_dir: Path | None = None
    eagle_dir: Path | None = None
    route_file: Path | None = None
    ngram_draft: bool = False
    max_draft_tokens: int = 7
    kernels: bool = True
    native: bool = True
    packed_file_bytes: int = 0
    poison: bool = False

    def __post_init__(self) -> None:
        known = {"dtype": DTYPES, "quant": QUANTS, "kv_format": KV_FORMAT_NAMES}
        for name, words in known.items():
            if (found := getattr(self, name)) not in words:
                expected = ", ".join(map(str, words))
                raise ConfigError(f"{name}: expected one of {expected}, found {found!r}")
        if self.adapters and self.adapter_dir is not None:
            raise ConfigError(f"adapters: expected no adapter_dir beside, found {self.adapter_dir}")
        if self.eagle_dir is not None and (self.ngram_draft or self.draft_dir is not None):
            raise ConfigError("eagle_dir: expected no other drafter beside it, found one")
        if self.eagle_dir is not None and self.device == "cpu":
            raise ConfigError("eagle_dir: expected a GPU beside it, found device cpu")
        if not 0 <= self.kv_memory_share < 1:
            raise ConfigError(
                f"kv_memory_share: expected 0 to less than 1, found {self.kv_memory_share}"
            )
        least = {
            "kv_tokens": 2 * BLOCK_TOKENS, "max_branches": 1, "threads": 1, "step_tokens": 1,
            "background_tokens": 1, "max_draft_tokens": 0, "preemptive_tokens": 0,
            "kv_spare_bytes": 0, "packed_file_bytes": 0,
        }  # fmt: skip
        for name, n in least.items():
            if (found := getattr(self, name)) < n:
                raise ConfigError(f"{name}: expected at least {n}, found {found}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters and bounds of one reply.

    temperature 0 is greedy. seed None takes the engine's own seed; the same seed, prompt and
    parameters give the same text whatever runs beside it or drafts for it: always where layers run
    natively; in torch and on a GPU up to near ties, for there the number of rows in a step
    changes the order of summation.
    top_k 0 and top_p 1 switch the filters off.
    stop: strings that end the reply and are not part of it.
    json_schema: the reply must be a JSON text valid under this schema (given as JSON text).
    forced_tools: the reply must be one call of one of these tools (a JSON array as text, each
        tool with "name" and "parameters"), written as the checkpoint's template writes calls.
    offered_tools: the reply may call one of these (as above) or speak; what it calls is bound to
        them where one token of the checkpoint opens a call.
    logprobs: report each token's log probability, and those of this many likeliest; None: do not.
    is_batch: nobody waits for this reply; it is served when nothing else is due.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    json_schema: str | None = None
    forced_tools: str | None = None
    offered_tools: str | None = None
    is_batch: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("max_tokens", self.max_tokens >= 1, "at least 1", self.max_tokens),
            ("temperature", self.temperature >= 0, "0 or more", self.temperature),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1", self.top_p),
            ("top_k", self.top_k >= 0, "0 or more", self.top_k),
            ("stop", all(self.stop), "no empty string", self.stop),
            ("logprobs", 0 <= (self.logprobs or 0) <= MAX_LOGPROBS, "0 to 20", self.logprobs),
            (
                "json_schema",
                self.json_schema is None or self.forced_tools is None,
                "none beside forced_tools",
                self.json_schema,
            ),
        )
        for name, holds, expected, found in checks:
            if not holds:
                raise InvalidRequest(f"{name}: expected {expected}, found {found!r}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one reply, in tokens."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt: resident at `commit` (staged before, or shared)
    prefilled_tokens: int = 0  # of the prompt: computed after `commit`
    output_tokens: int = 0
    drafted_tokens: int = 0  # verified for this reply: a drafter's guesses, and what was made ahead
    accepted_tokens: int = 0  # of those: kept
    guessed_tokens: int = 0  # of the drafted: a drafter's guesses
    confirmed_tokens: int = 0  # of those: kept
    adopted_tokens: int = 0  # taken over from a preemptive reply
    discarded_tokens: int = 0  # made ahead in this turn and thrown away
    kv_blocks: int = 0  # held by the branch at the end


@dataclass(frozen=True, slots=True)
class Timings:
    """The moments of one reply, in milliseconds after `commit`."""

    queue_ms: float = 0.0  # until the first of its tokens was in a step
    ttft_ms: float = 0.0  # until the first token was sampled
    total_ms: float = 0.0
    token_gaps_ms: tuple[float, ...] = ()  # between successive steps that gave tokens


@dataclass(frozen=True, slots=True)
class RouteSigns:
    """The needs of the answer to the staged turn, as a head reads them.

    large_rank: a large model, as the share of calibrated turns that need one less. tool, retrieval:
    the probability that a tool is called, and that nothing in the prompt answers.
    """

    large_rank: float
    tool: float
    retrieval: float


@dataclass(frozen=True, slots=True)
class Staged:
    """The newest staged turn is resident.

    n_prefilled: tokens computed for it since the staging before (the rest was already there).
    p_end_of_turn: probability that the caller's turn ends after the last staged token; see
        `end_of_turn` for how it is read. None on a branch that does not read it.
    route: None where no head reads it.
    """

    branch_id: str
    n_resident: int
    n_prefilled: int
    p_end_of_turn: float | None
    route: RouteSigns | None = None


@dataclass(frozen=True, slots=True)
class PreemptiveDelta:
    """Text of a preemptive reply; it stands only if the branch is committed with its attempt."""

    branch_id: str
    attempt: int
    text: str
    n_tokens: int


@dataclass(frozen=True, slots=True)
class PreemptiveCall:
    """A preemptive reply calls a tool; as with its text, the call stands only if committed."""

    branch_id: str
    attempt: int
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class PreemptiveDone:
    """A preemptive reply came to its end (or was given up: `finish_reason` "cancelled").

    "lost": given up because somebody more urgent needed its room.
    """

    branch_id: str
    attempt: int
    finish_reason: str
    tokens: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verified:
    """The verdict on another engine's draft: the preemptive reply begins with `n_kept` of its
    tokens.
    """

    branch_id: str
    attempt: int
    n_kept: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the reply: natural log of its probability, and `top`, the likeliest first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the committed reply, never retracted. A reply made ahead is sent anew.

    logprobs: one for each token since the delta before, where the parameters ask for them.
    """

    branch_id: str
    text: str
    n_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The committed reply calls a tool; `arguments_json` is a JSON object as text."""

    branch_id: str
    call_id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Done:
    """The committed reply ended: "stop", "length", "cancelled", or, where `error` says why,
    "malformed_call" (the model began a tool call and did not write one) or "error".

    Nothing about this reply comes after it.
    """

    branch_id: str
    finish_reason: str
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    error: str | None = None

    @property
    def token_ms(self) -> float:
        """Mean time of a token behind the first; 0 where some were made ahead, or there is none."""
        n_behind = self.usage.output_tokens - 1
        if n_behind < 1 or self.usage.adopted_tokens:
            return 0.0
        return sum(self.timings.token_gaps_ms) / n_behind


Event = (
    Staged
    | PreemptiveDelta
    | PreemptiveCall
    | PreemptiveDone
    | Verified
    | TextDelta
    | ToolCall
    | Done
)
