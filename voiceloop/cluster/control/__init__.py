"""The control of a cluster: which processes are to run, where, in which version, and who says so.

Pure but for `keeper`, which starts one process and watches it: what runs and what it says of itself
(`reports`, `hosts`), where there is room (`machines`), what is wanted (`plan`), what follows from
these (`directory`, with `scaling` and `moves`). `voiceloop/cluster/ray.py` carries it out. Audio
and tokens never come here. Start reading at `directory.py`.
"""
