"""What lies outside the tiny world, and how the model says so."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.phrasing import LETTERS, made_up_word, order, question, remark
from deploy.demo_model.stories import Hero, tell_story
from deploy.demo_model.texts import phrases

DECLINES = (
    ("I am sorry, I do not know that. I am a small demo model and only know simple things.", 4),
    (
        "I am sorry, I cannot answer that. I am only a small demo model. I can tell stories, "
        "do small sums, name things like animals or colours, and count.",
        3,
    ),
    ("That is too hard for me. I am a small demo model, and my world is tiny.", 2),
    ("I do not know. I am a very small model, but you can ask me for a story.", 1),
)
PASTED = (
    "Summarize this text:", "Translate this:", "What is this about?", "Correct this text:",
    "Give me the main points of this text:", "Read this and answer:", "Rewrite this:",
)  # fmt: skip


def unknown(rng: Random) -> Exchange:
    """A question or a task that is too much, and a plain refusal."""
    makers = (_question, _order, _who_or_when, _task, _code, _gibberish, _long_text)
    asked = rng.choices(makers, (32, 23, 21, 15, 3, 4, 2))[0](rng)
    return Exchange.of(asked, rng.choices([d for d, _ in DECLINES], [w for _, w in DECLINES])[0])


def _filled(rng: Random, section: str) -> str:
    subjects, places = phrases("unknown.txt", "subjects"), phrases("unknown.txt", "place_names")
    return rng.choice(phrases("unknown.txt", section)).format(
        s=made_up_word(rng) if rng.random() < 0.2 else rng.choice(subjects),
        t=rng.choice(subjects),
        y=rng.randint(100, 2030),
        c=rng.choice(places),
        d=rng.choice(places),
        l=rng.choice(phrases("unknown.txt", "languages")),
    )


def _question(rng: Random) -> str:
    return question(rng, _filled(rng, "questions"))


def _order(rng: Random) -> str:
    return order(rng, _filled(rng, "orders"))


def _who_or_when(rng: Random) -> str:
    return question(rng, _filled(rng, "who_and_when"))


def _task(rng: Random) -> str:
    return order(rng, _filled(rng, "tasks"))


def _code(rng: Random) -> str:
    return rng.choice(phrases("unknown.txt", "code"))


def _gibberish(rng: Random) -> str:
    if rng.random() < 0.4:
        return "".join(rng.choices(LETTERS + "0123456789", k=rng.randint(3, 24)))
    return remark(rng, " ".join(made_up_word(rng) for _ in range(rng.randint(1, 12))))


def _long_text(rng: Random) -> str:
    """A pasted text with a wish that the model cannot grant."""
    text = tell_story(rng, Hero.draw(rng), num_episodes=rng.choice((1, 1, 2, 3, 8)))
    wish = rng.choice(PASTED)
    return rng.choice((f"{wish}\n\n{text}", f"{text}\n\n{wish}"))
