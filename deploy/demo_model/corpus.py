"""The training text: conversations drawn from all topics, the same for the same seed."""

from collections.abc import Iterator
from random import Random

from deploy.demo_model.chat_topics import names, other_scripts, small_talk, unknown
from deploy.demo_model.conversation import Exchange, Topic, Turn
from deploy.demo_model.fact_topics import animals, calendar, capitals, colours
from deploy.demo_model.lexicon import CATEGORIES
from deploy.demo_model.list_topics import kinds, lists
from deploy.demo_model.number_topics import counting, number_facts, sums, sums_in_words, too_big
from deploy.demo_model.phrasing import capitalize
from deploy.demo_model.stories import Hero, tell_story
from deploy.demo_model.story_topics import after_story, long_stories, rhymes, short_stories
from deploy.demo_model.story_words import NAMES
from deploy.demo_model.texts import phrases
from deploy.demo_model.word_topics import echo, long_echo, opposites, spelling

# How often a topic is drawn, in parts of the whole.
TOPICS: tuple[tuple[Topic, float], ...] = (
    (small_talk, 17), (names, 3), (other_scripts, 4), (unknown, 15), (sums, 24),
    (sums_in_words, 2), (too_big, 2.5), (counting, 4), (number_facts, 3), (lists, 11),
    (opposites, 5), (animals, 7), (colours, 3), (calendar, 4), (capitals, 3), (kinds, 3),
    (echo, 6), (spelling, 4), (short_stories, 13), (long_stories, 2.5), (after_story, 1),
    (rhymes, 2),
)  # fmt: skip
PLAIN_SHARE = 0.06  # texts outside any chat
SYSTEM_SHARE = 0.3
LONG_SHARE = 0.012  # conversations that fill much of the context
MAX_EXCHANGES = 30


def echoes(seed: int, count: int) -> Iterator[tuple[Turn, ...]]:
    """What the model learns first: to copy. Names and heroes then come easily."""
    rng = Random(seed)
    for _ in range(count):
        yield long_echo(rng).turns


def conversations(seed: int) -> Iterator[tuple[Turn, ...]]:
    """An endless row: mostly one exchange, sometimes a few, rarely `MAX_EXCHANGES`."""
    rng = Random(seed)
    while True:
        if rng.random() < PLAIN_SHARE:
            yield (Turn("text", plain_text(rng)),)
        else:
            yield _chat(rng)


def _chat(rng: Random) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    if rng.random() < SYSTEM_SHARE:
        turns.append(Turn("system", _system_prompt(rng)))
    for _ in range(_num_exchanges(rng)):
        turns.extend(_exchange(rng).turns)
    return tuple(turns)


def _num_exchanges(rng: Random) -> int:
    if rng.random() < LONG_SHARE:
        return rng.randint(6, MAX_EXCHANGES)
    return rng.choices((1, 2, 3, 4), (70, 16, 9, 5))[0]


def _exchange(rng: Random) -> Exchange:
    topics, weights = zip(*TOPICS, strict=True)
    topic: Topic = rng.choices(topics, weights)[0]
    return topic(rng)


def _system_prompt(rng: Random) -> str:
    """A persona, some rules, or both; the model stays itself whatever they say."""
    persona = rng.choice(phrases("system_prompts.txt", "personas"))
    rules = rng.sample(phrases("system_prompts.txt", "rules"), rng.choice((0, 0, 1, 1, 2, 4)))
    if rules and rng.random() < 0.2:
        return " ".join(rules)
    return " ".join([persona, *rules])


def plain_text(rng: Random) -> str:
    """What a raw completion continues: a story, some facts, somebody who introduces himself."""
    return rng.choices((_story, _facts, _introduction), (65, 22, 13))[0](rng)


def _story(rng: Random) -> str:
    return tell_story(rng, Hero.draw(rng), rng.choice((1, 1, 1, 2)))


def _facts(rng: Random) -> str:
    """A few answers on one subject, without their questions."""
    topic = rng.choice((animals, colours, calendar, capitals, opposites, counting, sums, kinds))
    return " ".join(topic(rng).answer for _ in range(rng.randint(2, 5)))


def _introduction(rng: Random) -> str:
    name, other = rng.sample(NAMES, 2)
    food = rng.choice(CATEGORIES[("foods", "things to eat")])
    colour = rng.choice(CATEGORIES[("colours", "colors")])
    pet = rng.choice(CATEGORIES[("pets",)])
    start = capitalize(rng.choice(("hello, my name is", "my name is", "hi, my name is", "I am")))
    return (
        f"{start} {name}. I live in a small house with my friend {other}. I like {food} and the "
        f"colour {colour}. Every day I play with my {pet}. We are very happy."
    )
