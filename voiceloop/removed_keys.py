"""Keys that a configuration or an agent file had once, and what to do instead.

Owns the table. A file, a variable or a flag that still names such a key ends the start with its
sentence. Who removes a key adds its row here: the path as it stood in the file, and a sentence
that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# "engine.x" names one key; a table's own name, as "canary", names all keys of the table. Keys of
# an agent file stand here in the same way; those of a list of tables as "tools.x".
REMOVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("canary.version", "canary.share"), "Write [canary] LABEL = SHARE, as v2 = 0.05, in a file."
    ),
    "canary.shadow": "Leave it out: a canary answers its own calls, and no turns of others.",
    **dict.fromkeys(
        ("anticipation.budget_tokens", "anticipation.budget_speech_ms"),
        "Leave it out: a call throws away 1,000 tokens or 60 s of speech a minute at most. Write "
        "anticipation.off = ['speculative_reply'] to draft nothing.",
    ),
    **{
        f"anticipation.{part}": f"To switch it off write anticipation.off = ['{part}']."
        for part in (
            *("prefill", "retrieval", "p_end", "p_voice", "speculative_reply", "held_clause"),
            *("early_start", "prefix_cache", "tool_calls", "slide"),
        )
    },
    "anticipation.speculative_decoding": "To switch it off write engine.drafter = 'none'.",
    "anticipation.remote_prefill": "To switch it off write anticipation.off = ['prefill'].",
    "anticipation.remote_drafts": "To switch it off write anticipation.off = "
    "['speculative_reply'].",
    "anticipation.remote_priority": "Name the service: llm_service = 'vllm' or 'sglang'.",
    "knowledge.deadline_ms": "Leave it out: a service that searches has 120 ms.",
    "http_cache_mb": "Leave it out: each answer is generated. Keep answers in the client.",
    "tool_timeout_ms": "Set tool_timeout_ms in the agent's file.",
    "voice_cache_mb": "Leave it out: the voice keeps 32 MiB of what it has spoken.",
    "anticipation.warm_requests": "Leave it out: a service is connected to when the caller begins.",
    "end_reader": "To switch it off write anticipation.off = ['p_end'].",
    "voice_reader": "To switch it off write anticipation.off = ['p_voice'].",
    **dict.fromkeys(
        ("speech_device", "stt_device", "tts_device"),
        "Leave it out: preset 'gpu' hears on the first card. A second one takes the language "
        "model: engine.device = 'cuda:1'.",
    ),
    "realtime_key": "Write llm_key, also beside realtime_url.",
    "realtime_model": "Write llm_model, also beside realtime_url.",
    "realtime_voice": "Write the voice behind the address: realtime_url = 'wss://HOST/v1#VOICE'.",
    "slo.answer_ms": "Set slo.gap_ms: five eighths of it are for the answer.",
    "slo.barge_in_ms": "Leave it out: the agent is to be silent 300 ms after the caller's onset.",
    "limits.frame_bytes": "Leave it out: a client's message holds 2 MiB at most.",
    "quota.speculative_tokens": "Leave it out: a call throws away 1,000 tokens or 60 s of speech a "
    "minute at most. Bound quota.calls and quota.call_minutes.",
    "engine.context_tokens": "Set context_tokens.",
    "engine.kv_memory_share": "Set engine.kv_tokens: the start's lines say how many there are.",
    "engine.draft_model": "Name the folder in engine.drafter.",
    "engine.native": "Leave it out: the C library serves where it can be had, else torch does.",
    "engine.step_budget_ms": "Leave it out: one step of a prompt takes 10 ms at most.",
    "engine.host_tier_mb": "Leave it out: on a CPU 512 MiB beside the KV cache keep conversations.",
    **dict.fromkeys(
        ("cascade.small", "cascade.large"), "Write cascade.models = ['main', 'big'], small, large."
    ),
    **dict.fromkeys(("models.hears", "models.tools"), "Write takes = ['tools', 'sound']."),
    "webrtc.turn_secret": "Write it in [webrtc.ice_servers]: 'turn:HOST' = 'SECRET'.",
    "cascade.route_head": "Name it route.safetensors and put it into the model's folder.",
    "quota.tool_calls": "Leave it out. Bound quota.calls and quota.call_minutes, or have the "
    "service refuse.",
    "engine.prefix_file_mb": "Leave it out: up to 512 MiB of instructions are kept under "
    "$XDG_CACHE_HOME, which may point to another disk.",
    "limits.slow_client_s": "Leave it out: a client that takes nothing for 5 s is closed.",
    "limits.uncommitted_audio_minutes": "Leave it out: 10 minutes of audio may wait for a commit.",
    "limits.seed": "Leave it out: draws above limits.temperature 0 have one seed.",
    "greeting_wait_ms": "Leave it out: a client that sends nothing is greeted after a second.",
    "max_turn_s": "Leave it out: a caller who sounds for 60 s without a pause is answered.",
    "knowledge.embeddings": "Leave it out, or put a service that searches by vectors behind "
    "knowledge.source (KNOWLEDGE.md).",
    "knowledge.embeddings_headers": "Leave it out: folders are searched by words and their sound.",
    "knowledge.embedding_model": "Leave it out: folders are searched by words and their sound.",
    "knowledge.least_score": "Leave it out: folders are searched by words and their sound.",
    **dict.fromkeys(("knowledge.folder", "knowledge.url"), "Write source = 'FOLDER OR ADDRESS'."),
    "knowledge.kind": "Name a service that answers as KNOWLEDGE.md says in knowledge.source; "
    "a few lines in front of Qdrant are one.",
    "remote_key": "Name the key of each service: stt_key, llm_key, tts_key.",
    "engine.calibration_text": "Leave it out: it made int4 no better. Finer weights are "
    "engine.weights = 'int8', or a checkpoint that was quantized with AWQ.",
    "engine.fused_launches": "Leave it out: a GPU's steps have one set of kernels.",
    "engine.prompt_activations": "Leave it out: a prompt's inputs are multiplied in bf16.",
    **dict.fromkeys(
        ("workers.ca", "workers.certfile", "workers.keyfile"),
        "Leave it out: a worker draws its certificate, and workers.key proves both ends over it.",
    ),
    "workers.engine": "Write llm_url = 'worker://HOST:PORT'.",
    "workers.recognizer": "Write stt_url = 'worker://HOST:PORT'.",
    "workers.voice": "Write tts_url = 'worker://HOST:PORT'.",
    **dict.fromkeys(
        ("models.prices", "models.prompt_million", "models.cached_million", "models.reply_million"),
        "Write it in [prices]: NAME = [PROMPT, CACHED, REPLY].",
    ),
    **dict.fromkeys(
        ("prices.tokens", "prices.server_hour"),
        "Write [prices] main = [PROMPT, CACHED, REPLY] in the file.",
    ),
    **{f"call.{tool}": f"Write call.tools = ['{tool}']." for tool in ("end_call", "send_digits")},
    "noise_reduction": "Set audio.input.noise_reduction in the session; for telephones in "
    "phone.number.session.",
    "waiting.say_after_ms": "Leave it out: a line is said after 1.5 s. None: waiting.say = [].",
    "waiting.budget_ms": "Leave it out: a reply waits 8 s for its tools. Set tools.deadline_ms.",
    **dict.fromkeys(("route.from_turn", "route.to_turn"), "Write turns = '2-4'."),
    "tools.method": "Write it before the address: url = 'GET https://...'.",
    "tools.at_once": "Leave it out: 32 calls of a tool run at once; take a lock where one may.",
    "tools.cache_s": "Leave it out: each call asks. Keep answers in the service, or put what never "
    "changes into tools.result.",
    "tools.late": "Leave it out: what comes late is told as soon as all are silent.",
    "tools.table_key": "Leave it out: the first of the tool's parameters names the entry.",
    "tools.table": "Write it as result = {...}, or [tools.result].",
    "tools.retries": "Leave it out: a call that cannot have done anything is tried once more.",
    "mcp.read_only": "Name each such tool under [[tools]], with mcp and side_effect_free = true.",
    **dict.fromkeys(
        ("barge_in.duck_ms", "barge_in.hold_ms", "barge_in.stop_ms", "barge_in.by_sound"),
        "Leave it out: these times are measured. Name words in barge_in.stop_words or "
        "barge_in.backchannels, or set barge_in.least_words.",
    ),
    "barge_in.enabled": "Write barge_in.speakers = 'nobody' where nobody may interrupt.",
    "barge_in.echo_guard": "Leave it out: the agent's own voice never counts.",
    "barge_in.words_ms": "Leave it out: where barge_in.least_words is 2 or more, words count once "
    "the sound has lasted 450 ms.",
    "quota.requests": "Leave it out: a key has 12 of the 16 requests that a server answers at a "
    "time. Bound quota.calls and quota.call_minutes.",
    "cascade.least_margin": "Leave it out: a model's margins told its right replies from its "
    "wrong ones no better than a coin. Name what the large one answers in [[route]].",
    "phone.answer": "Leave it out: where phone.webhook_url is set, it is asked about each call.",
    "phone.ring_ms": "Leave it out: a call is answered at once, or rings until the webhook "
    "decides.",
    "phone.max_minutes": "Set limits.session_minutes.",
    **{
        f"phone.{name}": f"Write it in [phone.secrets]: {name} = '...', one secret (PHONE.md)."
        for name in (
            *("twilio", "signalwire", "telnyx", "plivo", "vonage", "asterisk", "audiosocket"),
        )
    },
    "phone.webhook_secret": "Write it in [phone.secrets]: webhook = '...'.",
    "phone.minutes_a_day": "Bound phone.calls_an_hour and limits.session_minutes.",
    "phone.silence_s": "Leave it out: who says nothing for 10 s is asked. Write "
    "call.still_there = '' in the agent's file to ask nobody.",
    "phone.number.greeting": "Name an agent of its own in phone.number.agent.",
    "sip.trunk.user": "Write it into sip.trunk.uri = 'sip:NAME@HOST'.",
    **dict.fromkeys(
        ("phone.audiosocket.host", "phone.audiosocket.port"),
        "Write phone.audiosocket_at = 'HOST:PORT'.",
    ),
    "sip.host": "Leave it out: the server's host is listened at, or all addresses where "
    "that is loopback and sip.address is set.",
    "sip.rtp_ports": "Leave it out: sound comes at UDP ports 20000 to 20400.",
    "sip.codecs": "Leave it out: a call has the best codec that its far end offers; let your "
    "exchange offer those you want.",
    "sip.ring_s": "Leave it out: a call that goes out rings for 60 s at most.",
    "allow_unauthenticated": "Set keys or keys_file; or listen at 127.0.0.1, behind a proxy that "
    "knows who may come in.",
    "slots.pattern": "Leave it out, or write digits = 8: how many digits or letters there are. "
    "Have a tool check what only you know.",
    "tools.max_result_chars": "Leave it out: a result is cut after 4,000 characters. Name its "
    "fields in tools.keep.",
    "recording.transcript": "Write recording.words = 'none' to keep no words.",
    "recording.redaction": "Write recording.words = 'without_figures' to keep no numbers.",
    "memory": "Leave it out: facts of what left the model's window are always noted.",
}

_INDEX = re.compile(r"\[\d+\]")


def instead_of(path: str) -> str | None:
    """Return what to do instead of a key that is gone; None where none of this name was ever
    removed.

    path: as an error names it: ``engine.kv``, ``tools[0].late``.
    """
    return _instead(_INDEX.sub("", path), ".", {name: name for name in REMOVED})


def instead_of_variable(name: str, prefix: str) -> str | None:
    """The same for a variable of the environment, as ``VOICELOOP_ENGINE_KV``."""
    return _instead(name, "_", {prefix + _plain(key).upper(): key for key in REMOVED})


def instead_of_flag(option: str) -> str | None:
    """The same for a flag, as ``--engine-kv`` or ``--no-engine-kv=1``."""
    flag = option.partition("=")[0].replace("--no-", "--", 1)
    return _instead(flag, "-", {"--" + _plain(key).replace("_", "-"): key for key in REMOVED})


def _plain(key: str) -> str:
    return key.replace(".", "_")


def _instead(found: str, mark: str, keys: Mapping[str, str]) -> str | None:
    """keys: of each name in this form the key; the longest that ``found`` lies in is meant."""
    meant: Iterable[str] = (n for n in keys if found == n or found.startswith(n + mark))
    longest = max(meant, key=len, default=None)
    return None if longest is None else REMOVED[keys[longest]]
