"""Every part of a conversation comes back from the unmodified template of every family, once and in order."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.inference.models.families_page import PAGE
from tests.inference.own_templates import OWN, TOOLS, Own, templates_table
from uirl.config import ModelConfig
from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference import ChatRenderer, LoadedModel, Message, load_model
from uirl.inference.models.dialect import dialect_of
from uirl.inference.models.templates import TEMPLATES
from uirl.parsers import PARSERS, create_parser
from uirl.rollout.conversation import ContextWindow, Conversation
from uirl.types import ToolCall

WORKING = [name for name, own in OWN.items() if not own.refused]


def in_order(text: str, words: list[str]) -> None:
    """Passes where all words stand in the text, once and in this order."""
    assert {word: text.count(word) for word in words} == dict.fromkeys(words, 1), text
    assert [text.index(word) for word in words] == sorted(text.index(word) for word in words), text


def written(lm: LoadedModel, template: str | None) -> LoadedModel:
    """The model with another chat template."""
    loaded = replace(lm, tokenizer=copy.deepcopy(lm.tokenizer))
    loaded.tokenizer.chat_template = template
    return loaded


@pytest.fixture(params=WORKING)
def own(request: pytest.FixtureRequest) -> Own:
    return OWN[request.param]


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
def test_all_that_is_said_comes_back(own: Own, lm: LoadedModel, tools: Any) -> None:
    chat = own.renderer(lm, tools)
    said = [
        Message("system", "be brief1"),
        Message("user", "first2"),
        Message("assistant", "answer3"),
        Message("user", "second4"),
        Message("assistant", "<think>\nmaybe5\n</think>\n\nanswer6"),
        Message("tool", "result7", name="calculator", call_id="abcdefgh1"),
        Message("tool", "result8", name="calculator", call_id="abcdefgh2"),
        Message("user", "third9"),
    ]
    shown = chat._tokenizer.decode(chat.whole(said))
    in_order(shown, ["be brief1", "first2", "answer3", "second4", "answer6", "result7", "result8", "third9"])
    assert shown.count("maybe5") in (
        (1,) if chat.dialect.thoughts else (0, 1)
    )  # some keep those of the newest question
    assert ("calculator" in shown) or not tools
    alone = chat._tokenizer.decode(chat.whole([Message("user", "first2"), Message("user", "second4")]))
    in_order(alone, ["first2", "second4"])
    call = Message("assistant", "", tool_calls=(ToolCall("calculator", {"expression": "1+2"}, "abcdefgh1"),))
    answered = [Message("user", "first2"), call, Message("tool", "result7", name="calculator", call_id="abcdefgh1")]
    in_order(chat._tokenizer.decode(chat.whole(answered)), ["first2", "1+2", "result7"])


@pytest.mark.parametrize("name", [name for name in WORKING if OWN[name].picture])
def test_pictures_and_the_words_beside_them_come_back(name: str, lm: LoadedModel) -> None:
    loaded, dialect = OWN[name].seeing(lm)
    assert dialect.pictures
    shot = Screenshot(b"", "picture")
    said = [
        Message("system", "be brief1"),
        Message("user", "look2", (shot, shot)),
        Message("assistant", "answer3"),
        Message("user", "text4"),
        Message("assistant", "answer5"),
        Message("user", "again6", (shot,)),
    ]
    text = loaded.tokenizer.apply_chat_template(dialect.write(said), tokenize=False, add_generation_prompt=True)
    in_order(text, ["be brief1", "look2", "answer3", "text4", "answer5", "again6"])
    assert text.count(OWN[name].picture) == 3


def test_what_was_sampled_stays_whatever_token_ended_it(own: Own, lm: LoadedModel) -> None:
    """Every end token that the model knows, and a reply that was cut off: the next turn goes on from the same ids, or
    renders anew and says so; no answer is lost, and none is told twice."""
    chat = own.renderer(lm)
    tokenizer = chat._tokenizer
    talk = Conversation(chat, ContextWindow())
    talk.add(Message("system", "be brief1"))
    words = ["be brief1"]
    for turn, end in enumerate([*chat._loaded.end_ids, None]):
        talk.add(Message("user", f"question{turn}x"))
        before = talk.context().prompt_ids
        ids = tokenizer(f"answer{turn}x", add_special_tokens=False)["input_ids"] + ([] if end is None else [end])
        talk.reply(ids, chat.decode(ids), ended=end is not None)
        words += [f"question{turn}x", f"answer{turn}x"]
        talk.add(Message("user", "and"))
        context = talk.context()
        in_order(tokenizer.decode(context.prompt_ids), words)
        assert context.starts_segment or context.prompt_ids[: len(before) + len(ids)] == (*before, *ids)
        assert context.starts_segment is not chat.incremental
        talk.reply(tokenizer("ok", add_special_tokens=False)["input_ids"], "ok", ended=False)


@pytest.mark.parametrize(
    "roles",
    [("assistant", "user"), ("user", "assistant", "assistant", "user"), ("user", "system", "user"), ("tool", "user")],
    ids="-".join,
)
def test_a_conversation_of_another_shape_comes_back_or_is_refused_by_name(
    own: Own, roles: tuple[str, ...], lm: LoadedModel
) -> None:
    chat = own.renderer(lm)
    said = [Message(role, f"word{i}x", name="calculator" * (role == "tool")) for i, role in enumerate(roles)]
    try:
        outcome = chat._tokenizer.decode(chat.whole(said))
    except ContractError as error:
        outcome = str(error)
    refused = "the model: the chat template objects to messages of" in outcome and "model.chat_template" in outcome
    assert refused or all(outcome.count(message.text) == 1 for message in said), outcome


def test_a_reply_is_taken_back_as_its_end_token_ends_it(own: Own, lm: LoadedModel) -> None:
    chat = own.renderer(lm)
    ids = chat.demonstration("answer1")
    assert ids[-1] in chat._loaded.end_ids
    assert chat.closes(ids[-1], [Message("user", "next")]) or not chat.incremental
    assert chat.decode(ids).strip() == "answer1"


@pytest.mark.parametrize("name", [name for name, own in OWN.items() if own.refused])
def test_what_cannot_work_is_refused_by_name_with_the_remedy(name: str, lm: LoadedModel) -> None:
    with pytest.raises(ContractError, match=r"the model: the chat template .* end tokens .*generation_config\.json"):
        OWN[name].renderer(lm)


@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
def test_a_template_beside_the_tokenizer_is_read(file: str, lm: LoadedModel, tmp_path: Path) -> None:
    own = TEMPLATES["chatml"].replace("assistant", "model")
    written(lm, None).save(tmp_path)
    (tmp_path / file).write_text(json.dumps({"chat_template": own}))
    loaded = load_model(ModelConfig(local_path=str(tmp_path), device="cpu"))
    assert loaded.tokenizer.chat_template == own
    loaded.save(tmp_path / "again")
    again = load_model(ModelConfig(local_path=str(tmp_path / "again"), device="cpu"))
    assert again.tokenizer.chat_template == own


def test_a_template_is_tried_once_and_another_anew(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for template in ("chatml", "hermes"):
        loaded = written(lm, TEMPLATES[template] + "{# tried once #}")
        found[template] = loaded, dialect_of(loaded)
    assert [ChatRenderer.can_show(loaded, TOOLS) for loaded, _ in found.values()] == [False, True]
    monkeypatch.delattr("uirl.inference.models.dialect._Probe.render")
    for loaded, dialect in found.values():
        assert dialect_of(replace(loaded, tokenizer=copy.deepcopy(loaded.tokenizer))) == dialect
    loaded.tokenizer.chat_template += "{# and again #}"
    with pytest.raises(ContractError, match="no attribute 'render'"):
        dialect_of(loaded)


CONTENT = "{{ m.content }}"
ALTERED = {
    "earlier replies": "{% if m.role != 'assistant' or loop.last %}BODY{% endif %}",
    "words of the user but the last": "{% if m.role != 'user' or loop.last %}BODY{% endif %}",
    "order": "{% if loop.first %}{{ messages[-1].content }}{% endif %}BODY",
    "what was said long ago": "{% if loop.revindex <= 20 %}BODY{% endif %}",
    "capitals": "{{ m.content | lower }}",
    "marks": "{{ m.content | e }}",
    "tags": "{{ m.content | striptags }}",
    "quotes": "{{ m.content | tojson }}",
    "lines": "{{ m.content.split() | join(' ') }}",
    "lines but the first": "{{ m.content.split('\n')[0] }}",
    "indents": "{{ m.content | indent(2) }}",
    "what is long": "{{ m.content[:2000] }}",
}
"""What a template loses or changes -> how it writes a message, or its content."""


def saying(lm: LoadedModel, message: str) -> LoadedModel:
    """The model with a template that writes every message so."""
    body = f"<|im_start|>{{{{ m.role }}}}\n{CONTENT if 'BODY' in message else message}<|im_end|>\n"
    whole = message.replace("BODY", body) if "BODY" in message else body
    return written(lm, f"{{% for m in messages %}}{whole}{{% endfor %}}<|im_start|>assistant\n")


@pytest.mark.parametrize("what", ALTERED)
def test_a_template_that_loses_or_changes_what_is_said_is_refused(what: str, lm: LoadedModel) -> None:
    with pytest.raises(ContractError, match=r"loses, changes or doubles the text of .*set model\.chat_template"):
        ChatRenderer(saying(lm, ALTERED[what]))


def test_what_a_template_loses_in_one_role_is_given_to_it_in_another(lm: LoadedModel) -> None:
    loaded = saying(lm, "{% if m.role != 'system' %}BODY{% endif %}")
    shown = loaded.tokenizer.decode(ChatRenderer(loaded).whole([Message("system", "s1"), Message("user", "u2")]))
    in_order(shown, ["s1", "u2"])
    assert not dialect_of(saying(lm, "{{ m.content if m.role != 'tool' else m.content[:2000] }}")).tool


PLACES = {
    "as it came": ("", "{% for p in m.content %}{{ '<pic>' if p.type == 'image' else p.text }}{% endfor %}", True),
    "one a message": (
        "",
        "{% for p in m.content | unique(attribute='type') %}{{ p.text or '<pic>' }}{% endfor %}",
        False,
    ),
    "all at the head": (
        "{% for m in messages if m.content is not string %}{% for p in m.content if p.type == 'image' %}<pic>"
        "{% endfor %}{% endfor %}",
        "{% for p in m.content if p.text %}{{ p.text }}{% endfor %}",
        False,
    ),
}


@pytest.mark.parametrize("where", PLACES)
def test_pictures_stand_where_they_came(where: str, lm: LoadedModel) -> None:
    head, parts, fits = PLACES[where]
    body = f"{{% if m.content is string %}}{CONTENT}{{% else %}}{parts}{{% endif %}}"
    front: Any = SimpleNamespace(front=SimpleNamespace(word="<pic>"))
    loaded = written(lm, f"{head}{{% for m in messages %}}{body}<|im_end|>{{% endfor %}}")
    assert dialect_of(replace(loaded, vision=front)).pictures is fits


UNTOLD = {
    "nothing": ("{{ tools | tojson }}", False),
    "parameters": ("{{ tools[0].function.name }}: {{ tools[0].function.description }}", True),
    "what it does": ("{{ tools[0].function.name }} {{ tools[0].function.parameters | tojson }}", True),
    "all where there is a system prompt": (
        "{% if messages[0].role != 'system' %}{{ tools | tojson }}{% endif %}",
        True,
    ),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_tools_of_which_a_template_leaves_something_out_are_described(what: str, lm: LoadedModel) -> None:
    head, described = UNTOLD[what]
    template = f"{{% if tools %}}{head}{{% endif %}}{{% for m in messages %}}{CONTENT}<|im_end|>{{% endfor %}}"
    loaded = written(lm, template)
    assert bool(ChatRenderer(loaded, TOOLS).described) is described


def test_gpt_oss_keeps_its_channels_apart(lm: LoadedModel) -> None:
    chat = OWN["gpt-oss"].renderer(lm)
    reply = (
        "<|channel|>analysis<|message|>red is right<|end|><|start|>assistant<|channel|>final<|message|>press red"
        "<|return|>"
    )
    ids = chat._tokenizer(reply, add_special_tokens=False)["input_ids"]
    text = chat.decode(ids)
    assert text == reply.removesuffix("<|return|>")
    for name in PARSERS:
        action = create_parser(name).parse(text)
        assert "press red" not in action.thought
        assert action.parse_error is not None or action.answer == "press red", name
    talk = Conversation(chat, ContextWindow())
    talk.add(Message("user", "which"))
    talk.context()
    talk.reply(ids, text, ended=True)
    talk.add(Message("user", "go on"))
    shown = chat._tokenizer.decode(talk.context().prompt_ids)
    assert "<|start|>assistant<|channel|>final<|message|>press red<|end|>" in shown
    assert "red is right" not in shown  # as its template has it: earlier thoughts are left out


def test_the_table_of_the_page_is_up_to_date(lm: LoadedModel) -> None:
    assert templates_table(lm, TOOLS) in PAGE.read_text(), "python -m tests.inference.models.families_page"
