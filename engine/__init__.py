"""The language-model engine: branches of one conversation on one paged KV cache.

Start reading at ``engine.py`` (the public face), then ``types.py`` (what goes in and comes out).
"""

import os

# Before torch loads OpenMP: its threads otherwise spin between steps, and beside another busy
# process the slowest tenth of the steps was measured at six times the fastest.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
