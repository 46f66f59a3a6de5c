"""Write a small dataset of film reviews for ``reviews.yaml``: bytes as tokens, and a label."""

import itertools
import json
from pathlib import Path

WORDS = (("dull", "tedious", "clumsy"), ("wonderful", "moving", "brilliant"))
WHAT = ("film", "story", "cast", "score", "ending")
TEMPLATES = ("A {} {}.", "What a {} {}!", "The critics called it a {} {}.", "I saw a {} {} today.")

lines = []
for template, what, label in itertools.product(TEMPLATES, WHAT, (0, 1)):
    for word in WORDS[label]:
        tokens = list(template.format(word, what).encode())
        lines.append(json.dumps({"input_ids": tokens, "labels": label}))
Path("reviews_train.jsonl").write_text("\n".join(lines[24:]), encoding="utf-8")
Path("reviews_val.jsonl").write_text("\n".join(lines[:24]), encoding="utf-8")
