"""Kernels run in triton's interpreter where there is no GPU, whichever test comes first."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton first comes, for all of a process
