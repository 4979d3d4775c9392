"""Tiny stories: a hero, something that happens, and an end."""

from dataclasses import dataclass
from random import Random

from deploy.demo_model.story_words import (
    CHARACTERS,
    HE_HEROES,
    NAMES,
    PLACES,
    SHE_HEROES,
    SHE_NAMES,
    SIGHTS,
    SKILLS,
    SPOTS,
    THINGS,
    TRAITS,
    TREATS,
)
from deploy.demo_model.texts import read_sections

OPENINGS = (
    "Once upon a time, there was {a_hero} named {name} who lived {place}.",
    "Once upon a time, {a_hero} named {name} lived {place}.",
    "There once was {a_hero} called {name}, who lived {place}.",
    "Long ago, {a_hero} named {name} lived {place}.",
)
LINKS = (
    "The next day brought something new.",
    "A few days later, something else happened.",
    "Soon there was another adventure.",
    "But that was not all.",
)
ENDINGS = (
    "And they lived happily ever after.",
    "The end.",
    "And that is how {name} found a friend.",
    "That night, {name} fell asleep with a smile.",
    "From that day on, they were best friends.",
    "And from that day on, {name} was never alone again.",
)


@dataclass(frozen=True, slots=True)
class Hero:
    """Who a story is about; `trait` is empty or one adjective."""

    kind: str
    name: str
    trait: str = ""

    @classmethod
    def draw(cls, rng: Random, kind: str | None = None) -> "Hero":
        """Any hero, or any of one kind."""
        chosen = kind or rng.choice(CHARACTERS)
        return cls(chosen, name_for(rng, chosen))

    @property
    def phrase(self) -> str:
        """The hero with an article: `a brave robot`."""
        return with_article(f"{self.trait} {self.kind}".strip())

    def pronouns(self, rng: Random) -> dict[str, str]:
        """`he`, `him`, `his` and `He`, as the name asks for; at random for an unknown name."""
        she = self.name in SHE_NAMES or self.kind in SHE_HEROES
        if self.name not in NAMES and self.kind not in SHE_HEROES | HE_HEROES:
            she = rng.random() < 0.5
        he, him, his = ("she", "her", "her") if she else ("he", "him", "his")
        return {"he": he, "him": him, "his": his, "He": he.capitalize()}


def with_article(noun: str) -> str:
    """`an owl`, `a unicorn`."""
    is_vowel = noun[0].lower() in "aeiou" and not noun.startswith("uni")
    return f"{'an' if is_vowel else 'a'} {noun}"


def name_for(rng: Random, kind: str) -> str:
    """A name that suits a queen, a king or anybody."""
    if kind in SHE_HEROES:
        return rng.choice([name for name in NAMES if name in SHE_NAMES])
    if kind in HE_HEROES:
        return rng.choice([name for name in NAMES if name not in SHE_NAMES])
    return rng.choice(NAMES)


def tell_story(
    rng: Random,
    hero: Hero,
    num_episodes: int = 1,
    friend: Hero | None = None,
    place: str | None = None,
) -> str:
    """A story of about 90 tokens an episode; episodes are paragraphs that share the hero."""
    words = hero.pronouns(rng) | {"name": hero.name}
    opening = rng.choice(OPENINGS).format(
        a_hero=_introduced(rng, hero), place=place or rng.choice(PLACES), **words
    )
    episodes = [section.lines for section in read_sections("episodes.txt").values()]
    parts: list[str] = []
    for i, episode in enumerate(rng.sample(episodes, num_episodes)):
        start = opening if i == 0 else rng.choice(LINKS)
        told = _tell_episode(rng, episode, words, friend or _draw_friend(rng, hero))
        parts.append(f"{start} {told}")
    ending = rng.choice(ENDINGS).format(**words)
    return "\n\n".join(parts) + (f" {ending}" if num_episodes == 1 else f"\n\n{ending}")


def _introduced(rng: Random, hero: Hero) -> str:
    if hero.trait or rng.random() < 0.4:
        return hero.phrase
    return Hero(hero.kind, hero.name, rng.choice(TRAITS)).phrase


def _draw_friend(rng: Random, hero: Hero) -> Hero:
    while True:
        friend = Hero.draw(rng)
        if friend.name != hero.name and friend.kind != hero.kind:
            return friend


def _tell_episode(
    rng: Random, beats: tuple[tuple[str, ...], ...], words: dict[str, str], friend: Hero
) -> str:
    slots = words | {
        "friend": friend.name,
        "kind": friend.kind,
        "thing": rng.choice(THINGS),
        "spot": rng.choice(SPOTS),
        "skill": rng.choice(SKILLS),
        "sight": rng.choice(SIGHTS),
        "treat": rng.choice(TREATS),
    }
    sentences = [rng.choice(beat).format(**slots) for beat in beats]
    return _fix_articles(" ".join(sentences), friend.kind)


def _fix_articles(text: str, noun: str) -> str:
    """`a owl` becomes `an owl`: the beats say `a` before the friend and before a thing."""
    for word in (noun, "old map"):
        article = with_article(word)
        text = text.replace(f" a {word}", f" {article}").replace(f"A {word}", article.capitalize())
    return text
