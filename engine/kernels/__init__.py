"""Owns what runs on a GPU: Triton kernels, each beside its torch reference.

A kernel `name(...)` and its `name_reference(...)` take the same arguments, outputs and workspaces
included: nothing here allocates when called, and no grid depends on a value that lies on the
device, so that every call can be captured in a CUDA graph. What must be laid out anew for a kernel
(int4 weights) is packed by one function at load.

`launch` says how kernels are launched. Nothing is compiled once a model is ready: each step runs
before its graph is captured, and what would compile later is refused (`launch.compiling`). On
a CPU the kernels run only under TRITON_INTERPRET=1, for tests.
"""
