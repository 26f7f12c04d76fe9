"""llama.cpp's own server, as `llama-server -m FILE --port PORT -np 4 -c 16384 --jinja` starts it.

Runs in the environment `llama_cpp`: the package brings llama.cpp compiled, with its server.
"""

import sys
import time

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel, params.n_ctx, params.use_jinja = 4, 16384, True
server = xllamacpp.Server(params)
while True:
    time.sleep(60.0)
