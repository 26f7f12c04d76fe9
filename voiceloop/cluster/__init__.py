"""Models on other machines: workers on the network, and the pool a gateway chooses from.

Owns the connection of such a worker (`handshake`; `door` and `network_worker` on its side,
`remote_worker` on the gateway's), the process that watches one (`host`), and the choice among
several (`pool`, pure; `pooled`, over connections). Others may use `host` and `remote_workers`.
Start reading at `remote_worker.py`.
"""
