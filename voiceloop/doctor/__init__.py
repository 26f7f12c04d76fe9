"""``voiceloop doctor``: what is here, what is missing, and the command that brings it.

Owns the checks and their report. Others may use `report.run_doctor`. Start reading at `report.py`.
"""
