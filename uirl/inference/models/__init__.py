"""Models and what their forward pass reads.

`loading.py` makes a `LoadedModel` and holds the one forward pass that engine and learner share; `tiny.py` builds the
models that need no download, `unpacked.py` finds those that come along, inside wheels and in GGUF. `vision.py` turns
screenshots into pixels and positions, `attention.py` reads from a config what each layer sees. `chat.py` turns messages
into token ids, with the templates of `templates.py`; `control_tokens.py` keeps content from spelling control tokens,
`token_bytes.py` says which bytes a token stands for.
"""
