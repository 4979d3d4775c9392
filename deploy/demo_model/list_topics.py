"""Things of one kind: N of them, and what kind a thing is."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import (
    CATEGORIES,
    KIND_OF,
    NUMBER_WORDS,
    ORDERED_CATEGORIES,
    UNCOUNTED_KINDS,
    UNKNOWN_LISTS,
)
from deploy.demo_model.phrasing import capitalize, made_up_word, order, question
from deploy.demo_model.stories import with_article
from deploy.demo_model.story_words import CHARACTERS

MAX_LIST_LEN = 10
ORDERS = (
    "name {n} {x}", "list {n} {x}", "tell me {n} {x}", "give me {n} {x}", "name me {n} {x}",
    "write {n} {x}", "give me a list of {n} {x}", "list the names of {n} {x}", "say {n} {x}",
    "give me the names of {n} {x}", "give {n} examples of {x}", "make a list of {n} {x}",
    "think of {n} {x}", "write down {n} {x}", "tell me the names of {n} {x}", "{n} {x}",
)  # fmt: skip
ASKS = (
    "what are {n} {x}", "which {n} {x} do you know", "can you think of {n} {x}",
    "what {n} {x} are there",
)  # fmt: skip


def lists(rng: Random) -> Exchange:
    """N things of one kind, or some of them."""
    return rng.choices((_counted, _some, _one, _unknown), (67, 20, 7, 6))[0](rng)


def kinds(rng: Random) -> Exchange:
    """What a thing is: a cat is an animal, and no fruit."""
    if rng.random() < 0.15:
        return _character(rng)
    names = rng.choice([names for names in CATEGORIES if names[0] in KIND_OF])
    word = rng.choice(CATEGORIES[names])
    thing = word if names[0] in UNCOUNTED_KINDS else with_article(word)
    kind = with_article(KIND_OF[names[0]])
    if rng.random() < 0.6:
        asks = (f"what is {thing}", f"what kind of thing is {thing}", f"what's {thing}")
        return Exchange.of(question(rng, rng.choice(asks)), f"{capitalize(thing)} is {kind}.")
    if rng.random() < 0.5:
        return Exchange.of(question(rng, f"is {thing} {kind}"), f"Yes, {thing} is {kind}.")
    others = [other for other in KIND_OF.values() if other != KIND_OF[names[0]]]
    asked = question(rng, f"is {thing} {with_article(rng.choice(others))}")
    return Exchange.of(asked, f"No, {thing} is {kind}.")


def _character(rng: Random) -> Exchange:
    known = {word for words in CATEGORIES.values() for word in words}
    one = with_article(rng.choice([word for word in CHARACTERS if word not in known]))
    answer = f"{capitalize(one)} is someone in my stories. Shall I tell you one?"
    return Exchange.of(question(rng, f"{rng.choice(('what is', 'who is'))} {one}"), answer)


def _counted(rng: Random) -> Exchange:
    names = rng.choice(list(CATEGORIES))
    members = CATEGORIES[names]
    count = min(rng.choice((2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10)), len(members), MAX_LIST_LEN)
    number = NUMBER_WORDS[count] if rng.random() < 0.55 else str(count)
    answer = _numbered(_drawn(rng, names[0], count))
    if rng.random() < 0.1:
        asked = question(rng, rng.choice(ASKS).format(n=number, x=_called(rng, names)))
    else:
        asked = order(rng, rng.choice(ORDERS).format(n=number, x=_called(rng, names)))
    return Exchange.of(asked, answer)


def _some(rng: Random) -> Exchange:
    """All members of an ordered kind, five of the others."""
    names = rng.choice(list(CATEGORIES))
    in_full = names[0] in ORDERED_CATEGORIES - {"letters"}
    number = rng.choice(("all the", "the", "all") if in_full else ("some", "a few", "five or so"))
    called = rng.choice(names)
    asked = order(rng, rng.choice(ORDERS[:7]).format(n=number, x=called))
    if rng.random() < 0.3:
        asks = (f"what {called} do you know", f"do you know any {called}", f"what are the {called}",
                f"which {called} are there", f"do you know the {called}", f"{called}")  # fmt: skip
        asked = question(rng, rng.choice(asks))
    return Exchange.of(
        asked, _numbered(_drawn(rng, names[0], len(CATEGORIES[names]) if in_full else 5))
    )


def _one(rng: Random) -> Exchange:
    names = rng.choice(list(CATEGORIES))
    one = rng.choice(names)
    if one in ("colours", "colors", "animals", "fruits", "birds", "shapes", "drinks", "sports",
               "vehicles", "flowers", "trees", "planets", "months", "seasons", "numbers", "letters",
               "names", "insects", "jobs", "toys"):  # fmt: skip
        single = one.removesuffix("s")
        wish = rng.choice((f"one {single}", with_article(single), f"1 {single}", f"any {single}"))
    else:
        wish = f"one of the {one}"
    text = rng.choice(("name {}", "tell me {}", "give me {}", "name me {}", "say {}")).format(wish)
    return Exchange.of(order(rng, text), f"Here is one: {_drawn(rng, names[0], 1)[0]}.")


def _unknown(rng: Random) -> Exchange:
    what = rng.choice(UNKNOWN_LISTS) if rng.random() < 0.7 else made_up_word(rng) + "s"
    number = rng.choice((*NUMBER_WORDS[2:11], *range(2, 11), "some"))
    asked = order(rng, rng.choice(ORDERS).format(n=number, x=what))
    return Exchange.of(asked, f"I am sorry, I do not know any {what}.")


def _called(rng: Random, names: tuple[str, ...]) -> str:
    called = names[0] if rng.random() < 0.7 else rng.choice(names)
    if rng.random() < 0.1:
        return f"{rng.choice(('different', 'random', 'nice', 'common'))} {called}"
    return called


def _drawn(rng: Random, category: str, count: int) -> list[str]:
    """Ordered kinds from their start; others at random, the well-known ones more often."""
    members = next(words for names, words in CATEGORIES.items() if names[0] == category)
    if category in ORDERED_CATEGORIES:
        return list(members[:count])
    keyed = sorted(members, key=lambda word: rng.random() + members.index(word) / len(members))
    return keyed[:count]


def _numbered(words: list[str]) -> str:
    return "\n".join(f"{i}. {word}" for i, word in enumerate(words, start=1))
