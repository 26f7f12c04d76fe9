"""Moonshine: `streaming.py` its sliding windows; `decoder.py` the rules of those that hear a whole
window at once, over a network in onnxruntime (the embedded recognizer) or in torch.
"""
