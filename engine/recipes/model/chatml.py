"""The chat format of a SmolLM2 that was taught our calls: ChatML, with tools and their results.

SmolLM2's own template knows neither. Tools are written as the short signatures of the embedded
agent's format, a call in the notation that the engine reads, so that one data recipe serves both.
"""

from __future__ import annotations

from .chat_format import CHAT_TEMPLATE, ChatFormat

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

_KIND, _, _BODY = CHAT_TEMPLATE.partition("{%- if messages and")

CHATML_TEMPLATE = (
    _KIND
    + """\
{%- if messages and messages[0].role == 'system' -%}
{%- set prompt = messages[0].content | trim -%}{%- set rest = messages[1:] -%}
{%- else -%}
{%- set prompt = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- if prompt or tools -%}
{{ '<|im_start|>system\\n' + prompt }}
{%- if tools -%}{{ '\\nTools:' }}
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{%- set spec = f.parameters if f.parameters is defined and f.parameters else {} -%}
{%- set required = spec.required if spec.required is defined else [] -%}
{{ '\\n' + f.name }}(
{%- for name, p in (spec.properties if spec.properties is defined else {}).items() -%}
{{ name }}{{ '' if name in required else '?' }}: {{ kind(p) }}{{ '' if loop.last else ', ' }}
{%- endfor -%}): {{ f.description if f.description is defined else '' }}
{%- endfor -%}
{%- endif -%}{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in rest -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') | trim }}
{%- for call in (message.tool_calls if message.tool_calls is defined and message.tool_calls else \
[]) -%}
{%- set f = call.function if call.function is defined else call -%}
<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments if f.arguments is string else \
f.arguments | tojson }}}</tool_call>
{%- endfor -%}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
)

CHATML_FORMAT = ChatFormat(
    CHATML_TEMPLATE,
    {role: f"{START}{role}\n" for role in ("system", "user", "assistant", "tool")},
    END,
    PAD,
)
