"""What the agent did, in a browser: the server of `uirl view`, which reads runs and writes only labels.

`runs.py` finds runs and opens them, `listing.py` says of each how it stands; `index.py` and `search.py` answer about
100 000 trajectories at once, from a side file of their own; `episode.py` one trajectory, with `marks.py`, `flags.py`,
`tokens.py`; `pictures.py` what was shown and what the model was fed; `groups.py` siblings side by side; `metrics.py`
the curves; `access.py` who may ask; `app.py` the routes, `server.py` the process. The pages lie in `static/`.
"""
