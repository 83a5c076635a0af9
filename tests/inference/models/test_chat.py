"""What one more message adds, rendered alone, equals rendering the whole conversation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.inference.families import FAMILIES, knowing
from tests.inference.pictures import picture
from uirl.errors import ContractError
from uirl.inference import ChatRenderer, LoadedModel, Message
from uirl.inference.models.templates import TEMPLATES
from uirl.parsers import create_parser
from uirl.rollout.conversation import ContextWindow, Conversation
from uirl.types import ToolCall

LLAMA_WORDS = ["<s>", "</s>", "[INST]", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def with_template(loaded: LoadedModel, template: str) -> LoadedModel:
    """The model with another chat template and the special tokens that templates use."""
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = TEMPLATES.get(template, template)
    tokenizer.add_special_tokens({"additional_special_tokens": LLAMA_WORDS})
    ends = tuple(tokenizer.convert_tokens_to_ids(word) for word in ("<|im_end|>", "</s>", "<|eot_id|>"))
    return knowing(replace(loaded, tokenizer=tokenizer, end_ids=ends))


@pytest.mark.parametrize("template", ["own", "chatml", "hermes", "llama-2", "llama-3"])
@pytest.mark.parametrize("system", [True, False])
def test_growing_equals_rendering_the_whole(lm: LoadedModel, template: str, system: bool) -> None:
    loaded = lm if template == "own" else with_template(lm, template)
    chat = ChatRenderer(loaded)
    assert chat.incremental
    messages = [Message("system", "be brief")] if system else []
    messages.append(Message("user", "guess a number\nbetween 1 and 7"))
    ids = chat.whole(messages)
    for reply, answer in [("4", "higher"), ("6 or so", "lower"), ("", "  spaced  out ")]:
        ids = ids + chat.demonstration(reply)
        messages += [Message("assistant", reply), Message("user", answer)]
        if template == "llama-2" and answer.strip() != answer:
            break
        ids += chat.following(messages[-1:], after_end=True)
        assert ids == chat.whole(messages)


@pytest.mark.parametrize("kind", ["swallows", "begins"])
def test_what_follows_an_end_token_is_encoded_as_behind_one(lm: LoadedModel, kind: str) -> None:
    """Phi-3's end token swallows a line end behind it; sentencepiece without `legacy` begins a text with a space."""
    from tokenizers import AddedToken, pre_tokenizers

    template = (
        "{% for m in messages %}### {{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}### assistant\n{% endif %}"
    )
    if kind == "swallows":
        tokenizer = copy.deepcopy(lm.tokenizer)
        tokenizer.add_tokens([AddedToken("</s>", special=True, rstrip=True, normalized=False)])
    else:
        tokenizer = FAMILIES["mistral"].tokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.chat_template = template
    end = tokenizer.convert_tokens_to_ids("</s>")
    chat = ChatRenderer(knowing(replace(lm, tokenizer=tokenizer, banned_ids=(), end_ids=(end,))))
    said = [Message("user", "guess"), Message("assistant", "4"), Message("user", "higher")]
    behind = chat.following(said[2:], after_end=True)
    assert chat.whole(said)[-len(behind) - 1 :] == [end, *behind]


def test_pictures_take_as_many_tokens_as_the_model_gives_them(vlm: LoadedModel) -> None:
    chat = ChatRenderer(vlm)
    token = vlm.vision.image_token_id
    small, wide = picture(1), picture(2, (56, 28))
    messages = [Message("user", "press", (small, wide))]
    ids = chat.whole(messages)
    # 56 x 56 pixels are 4 x 4 patches of 14, merged 2 x 2: 4 tokens; 56 x 28: 2 tokens
    assert ids.count(token) == 4 + 2
    ids += chat.demonstration("ok") + chat.following([Message("user", "", (small,))], after_end=True)
    assert ids == chat.whole([*messages, Message("assistant", "ok"), Message("user", "", (small,))])


def test_pictures_for_a_text_model_are_refused(lm: LoadedModel) -> None:
    with pytest.raises(ContractError, match="text model"):
        ChatRenderer(lm).whole([Message("user", "look", (picture(1),))])


def test_a_template_that_drops_pictures_is_refused(vlm: LoadedModel) -> None:
    dropping = TEMPLATES["chatml"].replace("<|image_pad|>", "picture")
    with pytest.raises(ContractError, match="drops pictures"):
        ChatRenderer(with_template(vlm, dropping)).whole([Message("user", "look", (picture(1),))])


def test_a_reply_that_was_cut_off_is_closed_by_the_context_and_may_be_told_again(lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    for text in ("ok7", "ok7 higher", "a\nb"):
        user, answer = Message("user", "guess"), Message("user", text)
        cut = chat.whole([user]) + lm.tokenizer("ok7", add_special_tokens=False)["input_ids"]
        grown = cut + chat.following([answer], after_end=False)
        assert grown == chat.whole([user, Message("assistant", "ok7"), answer])


REWRITES = {
    # earlier replies lose what stands before '</think>', as reasoning models' templates do
    "forgets": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ '<think></think>' "
    "if message['role'] == 'assistant' and loop.last }}{{ message['content'].split('</think>')[-1] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "numbers": TEMPLATES["chatml"].replace("['role'] + '\n'", "['role'] + loop.index | string + '\n'"),
    # replies stand as they were and the prompt is always the same; only the next user message knows its number
    "counts": TEMPLATES["chatml"].replace(
        "['role'] + '\n'", "['role'] + (loop.index | string if message['role'] == 'user' else '') + '\n'"
    ),
}


@pytest.mark.parametrize("how", REWRITES)
def test_a_template_that_rewrites_history_is_noticed(lm: LoadedModel, how: str) -> None:
    assert REWRITES[how] != TEMPLATES["chatml"]
    chat = ChatRenderer(with_template(lm, REWRITES[how]))
    assert not chat.incremental
    with pytest.raises(ContractError, match="rewrites history"):
        chat.following([Message("user", "x")], after_end=True)


def test_without_a_template_the_remedy_is_named(lm: LoadedModel) -> None:
    bare = replace(lm, tokenizer=copy.deepcopy(lm.tokenizer))
    bare.tokenizer.chat_template = None
    with pytest.raises(ContractError, match=r"model\.chat_template"):
        ChatRenderer(bare)


HEADER = "{{ '<|im_start|>assistant\n' }}"
FLAG = "{% if add_generation_prompt %}" + HEADER + "{% endif %}"
BARE = TEMPLATES["llama-2"].removesuffix("{% if add_generation_prompt %}{{ ' ' }}{% endif %}")


def test_a_template_that_ignores_the_prompt_is_refused_with_the_words_it_lacks(lm: LoadedModel) -> None:
    assert TEMPLATES["chatml"].endswith(FLAG)
    deaf = TEMPLATES["chatml"].removesuffix(FLAG)
    with pytest.raises(
        ContractError, match=r"ignores add_generation_prompt: it writes '<\|im_start\|>assist"
    ) as caught:
        ChatRenderer(with_template(lm, deaf))
    remedy = str(caught.value).partition("Jinja string with ")[2].partition(" at its end")[0]
    told = ChatRenderer(with_template(lm, deaf + remedy))  # as it is told
    asked = [Message("system", "be brief"), Message("user", "one"), Message("assistant", "two"), Message("user", "x")]
    assert told.incremental
    assert told.whole(asked) == ChatRenderer(with_template(lm, "chatml")).whole(asked)


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATES["chatml"].removesuffix(FLAG) + HEADER,  # the header stands behind every conversation
        BARE,  # there is none
        BARE.replace("{{ ' ' + m", "{{ '<think></think>' + m"),  # the policy writes what is missing
    ],
    ids=["always", "none", "thought"],
)
def test_a_template_whose_prompts_are_whole_need_not_read_the_flag(lm: LoadedModel, template: str) -> None:
    chat = ChatRenderer(with_template(lm, template))
    asked = [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]
    text = chat._tokenizer.decode(chat.whole(asked))
    assert text.count("assistant") == 2 * ("im_start" in template)
    assert chat.closes(chat.demonstration("two")[-1], asked[2:])
    assert chat.incremental is ("think" not in template)
    if chat.incremental:
        grown = chat.whole(asked[:1]) + chat.demonstration("two") + chat.following(asked[2:], after_end=True)
        assert grown == chat.whole(asked)


CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def test_tools_are_shown_and_results_are_appended(lm: LoadedModel) -> None:
    chat = ChatRenderer(with_template(lm, "hermes"), [CALCULATOR])
    assert chat.incremental
    asked = [Message("system", "be brief"), Message("user", "2 * 3 and 4 * 5?")]
    ids = chat.whole(asked)
    shown = lm.tokenizer.decode(ids)
    assert '<tools>\n{"type": "function", "function": {"name": "calculator"' in shown
    calls = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 * 3"}}\n</tool_call>'
    answers = [Message("tool", "6", name="calculator"), Message("tool", "20", name="calculator")]
    grown = ids + chat.demonstration(calls) + chat.following(answers, after_end=True)
    assert grown == chat.whole([*asked, Message("assistant", calls), *answers])
    # two results are one message of the user, as such models were taught
    assert (
        chat.following(answers, after_end=True)
        == lm.tokenizer(
            "\n<|im_start|>user\n<tool_response>\n6\n</tool_response>\n<tool_response>\n20\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n",
            add_special_tokens=False,
        ).input_ids
    )


def test_calls_that_somebody_else_made_are_rendered_by_the_template(lm: LoadedModel) -> None:
    chat = ChatRenderer(with_template(lm, "hermes"), [CALCULATOR])
    call = ToolCall("calculator", {"expression": "2 * 3"}, "c1")
    ids = chat.whole([Message("user", "2 * 3?"), Message("assistant", "so", tool_calls=(call,)), Message("user", "ok")])
    text = 'so\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 * 3"}}\n</tool_call><|im_end|>'
    assert text in lm.tokenizer.decode(ids)


@pytest.mark.parametrize("system", [[], [Message("system", "be brief")]], ids=["no prompt", "prompt"])
def test_tools_that_the_template_hides_stand_in_the_system_prompt(lm: LoadedModel, system: list[Message]) -> None:
    assert not ChatRenderer.can_show(lm, [CALCULATOR])
    chat = ChatRenderer(lm, [CALCULATOR], calls=create_parser("qwen"))
    assert chat.incremental
    assert "described in the system prompt" in " ".join(chat.notes())
    asked = [*system, Message("user", "2 * 3?")]
    shown = lm.tokenizer.decode(chat.whole(asked))
    before, after = shown.split("2 * 3?")
    assert before.startswith("<|system|>" + ("be brief\n\n" if system else "You"))
    assert '"name": "calculator"' in before
    assert create_parser("qwen").describe() in before
    assert "calculator" not in after
    called = Message("assistant", "", tool_calls=(ToolCall("calculator", {"expression": "2 * 3"}),))
    told = lm.tokenizer.decode(chat.whole([*asked, called, Message("tool", "6", name="calculator")]))
    assert '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 * 3"}}\n</tool_call>' in told
    reply = chat.demonstration("x")
    grown = chat.whole(asked) + reply + chat.following([Message("tool", "6", name="calculator")], after_end=True)
    assert grown == chat.whole([*asked, Message("assistant", "x"), Message("tool", "6", name="calculator")])


def test_a_reply_that_another_end_token_ends_is_closed(lm: LoadedModel) -> None:
    """A base model ends with <|endoftext|>, or with a stop token of the run: the message of the reply stays open."""
    chat = ChatRenderer(lm)
    close, other = (lm.tokenizer.convert_tokens_to_ids(word) for word in ("<|im_end|>", "<|endoftext|>"))
    said, asked = lm.tokenizer("higher", add_special_tokens=False)["input_ids"], Message("user", "next")
    for last, expected in ((close, "higher<|im_end|>"), (other, "higher<|endoftext|><|im_end|>")):
        talk = Conversation(chat, ContextWindow())
        talk.add(Message("user", "guess"))
        talk.context()
        talk.reply([*said, last], "higher", ended=True)
        talk.add(asked)
        assert f"{expected}<|user|>next" in lm.tokenizer.decode(talk.context().prompt_ids)


def test_the_marks_of_a_thought_stay_in_the_text_of_a_reply(lm: LoadedModel) -> None:
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<|other|>"]}, False)
    chat = ChatRenderer(replace(lm, tokenizer=tokenizer))
    ids = tokenizer("[THINK]maybe[/THINK]<|other|>press<|im_end|>", add_special_tokens=False)["input_ids"]
    assert chat.decode(ids) == "[THINK]maybe[/THINK]press"


def test_a_template_that_moves_its_tools_renders_every_turn_anew(lm: LoadedModel) -> None:
    """As Mistral's does: the tools stand before the newest question, so a new one rewrites what came before."""
    moving = (
        "{% for m in messages %}{% if tools and m.role == 'user' and loop.last %}TOOLS {{ tools | tojson }}"
        "{% endif %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    loaded = with_template(lm, moving)
    assert ChatRenderer(loaded).incremental
    assert not ChatRenderer(loaded, [CALCULATOR]).incremental


def test_a_conversation_that_was_rendered_before_has_its_own_pictures_and_calls(vlm: LoadedModel) -> None:
    """Texts are kept by what was said; pictures of other sizes and calls with other arguments are another matter."""
    small, large = picture(1), picture(1, (112, 56))
    chat, fresh = ChatRenderer(vlm), ChatRenderer(vlm)
    first = chat.whole([Message("user", "look", (small,))])
    assert chat.whole([Message("user", "look", (large,))]) == fresh.whole([Message("user", "look", (large,))]) != first
    assert chat.whole([Message("user", "look", (small,))]) == first
    for number in ("1", "2"):
        called = Message("assistant", "", tool_calls=(ToolCall("add", {"x": number}),))
        said = [Message("user", "add"), called, Message("user", "go on")]
        assert chat.whole(said) == ChatRenderer(vlm).whole(said)
