"""Moonshine: `decoder.py` its rules over a whole window at once, `onnx_network.py` the network in
onnxruntime and the embedded recognizer, `vocabulary.py` its words. Start with `onnx_network.py`.
"""
