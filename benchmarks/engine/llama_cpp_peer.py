"""llama.cpp as the engine bench's peer: a GGUF of the same weights, and a process that times it.

llama-cpp-python and gguf live in an environment of their own (they need a compiler to install, and
nothing else here needs them). `LlamaCpp` starts this file with that environment's interpreter and
asks it for one measurement at a time, so that peers take turns:

    python -m venv PEER && CMAKE_ARGS="-DGGML_NATIVE=ON" PEER/bin/pip install llama-cpp-python gguf
    VOICELOOP_LLAMA_CPP=PEER/bin/python python -m benchmarks.engine_bench --peers
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT = "VOICELOOP_LLAMA_CPP"  # the interpreter that has llama_cpp and gguf
REQUANTIZE = "requantize"
MOST_TOGETHER = 8  # replies at once
EXPECTED = f"expected {ENVIRONMENT} to name a Python with llama-cpp-python and gguf"


def interpreter() -> str:
    """The Python that has llama.cpp. Raises: FileNotFoundError, where it is not installed."""
    python = os.environ.get(ENVIRONMENT, "")
    imports = "import llama_cpp, gguf"
    if not python or subprocess.run([python, "-c", imports], capture_output=True).returncode:
        raise FileNotFoundError(f"{EXPECTED}, found {python or 'none'}")
    return python


def requantize(source: Path, kind: str, target: Path) -> Path:
    """The same weights as another kind of GGUF, by llama.cpp. Raises: FileNotFoundError."""
    command = [interpreter(), __file__, REQUANTIZE, str(source), kind, str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


class LlamaCpp:
    """A llama.cpp process on one model folder in q8_0, or on a GGUF file as it is."""

    def __init__(self, model_dir: Path, folder: Path, threads: int) -> None:
        """Raises: FileNotFoundError, where llama.cpp is not installed."""
        command = [
            interpreter(),
            __file__,
            str(model_dir),
            str(folder / "model.gguf"),
            str(threads),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask({})  # once the model is loaded

    def run(self, prompt: list[int], n_reply: int) -> tuple[float, list[int]]:
        """Median ms per token after the first, and the greedy reply."""
        first, rest = self._ask({"prompts": [prompt]}), self._ask({"n_steps": n_reply - 1})
        ms: list[float] = sorted(rest["ms"])
        return ms[len(ms) // 2], [*first["tokens"], *rest["tokens"]]

    def begin(self, prompts: list[list[int]]) -> float:
        """Read all of these prompts; milliseconds of the first, up to its first token."""
        return float(self._ask({"prompts": prompts})["ms"][0])

    def go_on(self, n_steps: int) -> list[float]:
        """A token more for each of them, so many times; milliseconds of each."""
        return list(self._ask({"n_steps": n_steps})["ms"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"expected an answer of llama.cpp, found it ended: {self.close()}")
        return dict(json.loads(line))

    def close(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


# -- in the peer's own environment ---------------------------------------------------------------


def read_bf16(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and fp32 arrays of a safetensors file of bf16 tensors, with numpy alone."""
    import numpy as np

    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"expected {name} as BF16, found {entry['dtype']}")
        first, last = entry["data_offsets"]
        halves = np.frombuffer(data[start + first : start + last], np.uint16)
        floats = (halves.astype(np.uint32) << 16).view(np.float32)
        yield name, floats.reshape(entry["shape"])


def write_gguf(model_dir: Path, path: Path) -> int:
    """A Llama folder as GGUF with q8_0 matrices; returns the size of its vocabulary."""
    import gguf

    config = json.loads((model_dir / "config.json").read_text())
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or 10000.0)
    writer.add_rope_dimension_count(config["hidden_size"] // n_heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for file in sorted(model_dir.glob("*.safetensors")):
        for key, tensor in read_bf16(file):
            for part, heads in (("q_proj", n_heads), ("k_proj", n_kv)):
                if part in key:  # rotated pairs are neighbours there, halves here
                    shape = tensor.shape
                    tensor = tensor.reshape(heads, 2, -1, shape[1]).swapaxes(1, 2).reshape(shape)
            name = names.get_name(key, try_suffixes=(".weight",))
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
            else:
                writer.add_tensor(name, gguf.quants.quantize(tensor, q8_0), raw_dtype=q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return int(config["vocab_size"])


def _quiet() -> None:
    import ctypes

    import llama_cpp

    global _said_to_nobody  # the library keeps no reference
    _said_to_nobody = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(_said_to_nobody, ctypes.c_void_p(0))


_said_to_nobody: Any = None


def serve(model_dir: Path, path: Path, threads: int) -> None:
    """Answer questions on stdin, one JSON object a line, until it is closed."""
    import llama_cpp
    import numpy as np

    n_vocab = 0
    if model_dir.suffix == ".gguf":
        path = model_dir
    else:
        n_vocab = write_gguf(model_dir, path)
    _quiet()
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max, params.kv_unified = (
        4096,
        512,
        MOST_TOGETHER,
        True,
    )
    params.n_threads = params.n_threads_batch = threads
    how = llama_cpp.llama_model_default_params()  # with repacked weights, where it has them
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), how)
    context = llama_cpp.llama_init_from_model(model, params) if model else None
    if context is None:
        sys.exit(f"expected llama.cpp to load {path}, found that it does not")
    n_vocab = n_vocab or llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)

    def decode(parts: list[tuple[int, int, list[int]]]) -> list[int]:
        """The likeliest next token of each (sequence, first position, tokens)."""
        n, last = 0, []
        for sequence, first, tokens in parts:
            for at, token in enumerate(tokens):
                batch.token[n], batch.pos[n] = token, first + at
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                batch.logits[n] = at == len(tokens) - 1
                n += 1
            last.append(n - 1)
        batch.n_tokens = n
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("expected llama_decode to succeed, found that it failed")
        rows = [llama_cpp.llama_get_logits_ith(context, i) for i in last]
        return [int(np.ctypeslib.as_array(row, (n_vocab,)).argmax()) for row in rows]

    def timed(parts: list[tuple[int, int, list[int]]]) -> tuple[list[int], float]:
        started = time.perf_counter()
        return decode(parts), (time.perf_counter() - started) * 1e3

    ends, newest = list[int](), list[int]()  # of each sequence: its tokens' number, the next one
    for line in sys.stdin:
        question, tokens, ms = json.loads(line), list[int](), list[float]()
        if "prompts" in question:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            ends, newest = [len(prompt) for prompt in question["prompts"]], []
            for i, prompt in enumerate(question["prompts"]):
                found, took = timed([(i, 0, prompt)])
                newest += found
                ms.append(took)
            tokens.append(newest[0])
        for _ in range(question.get("n_steps", 0)):
            newest, took = timed([(i, ends[i], [token]) for i, token in enumerate(newest)])
            ends = [end + 1 for end in ends]
            ms.append(took)
            tokens.append(newest[0])
        print(json.dumps({"ms": ms, "tokens": tokens}), flush=True)


def requantize_here(source: str, kind: str, target: str) -> None:
    """llama.cpp's own rounding of a file that may be rounded already, over all processors."""
    import llama_cpp

    _quiet()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        sys.exit(f"expected llama.cpp to make {kind} of {source}, found that it does not")


if __name__ == "__main__":
    if sys.argv[1:2] == [REQUANTIZE] and len(sys.argv) == 5:
        requantize_here(*sys.argv[2:])
        sys.exit()
    if len(sys.argv) != 4:
        sys.exit(
            f"expected MODEL_DIR GGUF THREADS, found {sys.argv[1:]}: not to be started by hand, "
            "python -m benchmarks.engine_bench --part llama_cpp does"
        )
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
