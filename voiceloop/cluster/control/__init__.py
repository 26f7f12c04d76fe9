"""The control of a cluster: which processes are to run, in which version, and who is told of them.

Ray places processes, tells of their end and starts them anew; here is what it lacks: versions that
replace each other call by call, drains, canaries, how many there are to be, and the list of workers
that gateways read. Pure but for `keeper`, which starts one process and watches it, and `telling`.
`voiceloop/cluster/ray.py` carries it out. Audio and tokens never come here. Start reading at
`directory.py`.
"""
