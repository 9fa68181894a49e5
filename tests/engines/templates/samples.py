"""Small templates in the manner of several families of models."""

from __future__ import annotations

from halo_weave.engines.templates.chat_template import CHATML

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# No system role, and user and assistant must take turns.
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SYSTEM_IN_LAST = (
    "{% for message in messages if message.role != 'system' %}"
    "{% if message.role == 'user' %}[Q]{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n"
    "{% endif %}{{ message.content }}[A]{% else %}{{ message.content }}</s>{% endif %}{% endfor %}"
)
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
IGNORES_SYSTEM = (
    "{% for message in messages %}{% if message.role in ['user', 'assistant'] %}"
    "<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endif %}{% endfor %}<assistant>"
)
# Thoughts of the current turn are written, past ones are not; a switch closes them at once.
THINKS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set content = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ content }}"
    "{% for call in m.tool_calls or [] %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' + call.function.arguments | tojson + '}\n</tool_call>' }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
OPENS_THOUGHT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}</s>"
    "{% elif m.role == 'user' %}<|User|>{{ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
CHANNELS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort if reasoning_effort is defined else 'medium' }}"
    "{% if messages[0].role == 'system' %}<|end|><|start|>developer<|message|>{{ messages[0].content }}{% endif %}<|end|>"
    "{% if tools %}<|start|>developer<|message|>{% for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'assistant' and m.tool_calls %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'system' %}"
    "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% else %}"
    "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ raise_exception('content must be a list') }}{% endif %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}</{{ m.role }}>{% endfor %}<assistant>"
)
WORDS_SWITCH = (
    "{% set ns = namespace(think=true) %}{% for m in messages %}{% if '/no_think' in m.content %}{% set ns.think = false %}{% endif %}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content.replace('/no_think', '').replace('/think', '').strip() }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if ns.think %}<think>{% else %}<think></think>{% endif %}{% endif %}"
)
GENERATION = (
    "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}</{{ m.role }}>"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}<assistant>"
)
TWICE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<again>{{ messages[-1].content }}<assistant>"
UPPER = "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}</{{ m.role }}>{% endfor %}<assistant>"
AS_JSON = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}</{{ m.role }}>{% endfor %}<assistant>"
)
NEEDS_TOOLS = (
    "{{ tools | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)

TEMPLATES = {name: text for name, text in globals().items() if name.isupper() and isinstance(text, str)} | {
    "CHATML": CHATML
}
