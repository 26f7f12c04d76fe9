import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels.kv_write import is_coded, kv_write, kv_write_reference  # noqa: E402
from engine.kv_format import KV_FORMATS  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N_HEADS, N_KV = 3, 1
POISON = 77  # a code no written slot need have, put where nothing may be written


@pytest.mark.parametrize("kv_format", ["plain", "int8"])
@pytest.mark.parametrize("dim, has_norm", [(80, True), (64, False)])
def test_rows_go_rotated_and_coded_into_their_slots(kv_format, dim, has_norm) -> None:
    torch.manual_seed(0)
    stored = KV_FORMATS[kv_format](torch.bfloat16)
    qkv = torch.randn(2, 4, (N_HEADS + 2 * N_KV) * dim, device=DEVICE)
    positions = torch.tensor([0, 3, 9, 2], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([15, -1, 16, 40], dtype=torch.int32, device=DEVICE)  # edges; padding
    cos, sin = torch.randn(2, 12, 1, dim, device=DEVICE).bfloat16().unbind(0)
    weights = list(torch.rand(2, dim, device=DEVICE).unbind(0)) if has_norm else [None, None]
    results = []
    for write in (kv_write, kv_write_reference):
        queries = torch.full((4, N_HEADS, dim), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        shape = (3, 16, 2, N_KV)
        codes = torch.full((*shape, dim), POISON, device=DEVICE)
        blocks = codes.to(stored.code_dtype)
        scales = torch.ones(*shape, dtype=torch.bfloat16, device=DEVICE)
        if not stored.is_scaled:
            scales = scales[..., :0]
        write(qkv, positions, slots, cos, sin, *weights, 1e-6, queries, blocks, scales)
        results.append((queries.float(), stored.decode(blocks, scales).float()))
    (queries, vectors), (expected_queries, expected_vectors) = results
    assert is_coded(blocks) == (kv_format == "int8")
    torch.testing.assert_close(queries, expected_queries, rtol=2**-6, atol=2**-6)
    # One step of the code apart at most: the interpreter truncates to bf16 where torch rounds.
    step = {"plain": 2**-6, "int8": 2**-5}[kv_format]
    written = expected_vectors.flatten(0, 1)[[15, 16, 40]]
    close = torch.isclose(
        vectors.flatten(0, 1)[[15, 16, 40]], written, rtol=2**-3, atol=step * written.max() / 3
    )
    assert close.all()
    untouched = torch.ones(48, dtype=torch.bool)
    untouched[[15, 16, 40]] = False
    assert torch.equal(vectors.flatten(0, 1)[untouched], expected_vectors.flatten(0, 1)[untouched])
