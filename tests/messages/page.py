"""The page of all messages, generated when the documentation is built; `python -m tests.messages.page` prints it."""

from __future__ import annotations

from tests.messages.sites import CLASSES, sites

HEAD = """# Every message

The messages of every class; `…` stands for a value. This page is generated from the source when the documentation is built.
"""


def page() -> str:
    by_class: dict[str, dict[str, None]] = {}
    for site in sites():
        if site.error in CLASSES and len(site.message) > 1:
            by_class.setdefault(site.error, {})[" ".join(site.message.split()).replace("`", "'")] = None
    parts = [HEAD]
    for error, messages in sorted(by_class.items()):
        parts += [f"## [`{error}`]({error.lower()}.md)\n", *(f"- `{message}`" for message in sorted(messages)), ""]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
