"""What is found while a conversation is played rather than looked for in a turn: how the subject behaves."""

from __future__ import annotations

from .registry import Check, declare

CRASH = declare(
    Check(
        name="crash",
        arm="subject",
        order=1,
        says="A legal request is answered, and no call raises",
        blind="an engine that swallows its own errors",
        ends=True,
    )
)
REFUSAL = declare(
    Check(
        name="refusal",
        arm="twin",
        order=2,
        says="A legal prompt is answered, an illegal one refused",
        blind="refusals that are right for a reason that was not declared",
        ends=True,
    )
)
MASKED = declare(
    Check(
        name="masked",
        arm="law",
        order=3,
        says="An error planted inside the engine reaches the caller",
        blind="errors that cannot be planted",
        ends=True,
    )
)
VOCABULARY = declare(
    Check(
        name="vocabulary",
        arm="law",
        order=4,
        says="Every token of a reply is one that the model has",
        blind="a wrong token of the vocabulary",
        ends=True,
    )
)
REWIND = declare(
    Check(
        name="rewind",
        arm="twin",
        order=5,
        says="A rewind to what is held succeeds, another is declined",
        blind="what a rewind left behind, which the next turns show",
        ends=True,
    )
)
PLACEMENT = declare(
    Check(
        name="placement",
        arm="alone",
        order=70,
        says="The same calls give the same bits alone and among other traffic",
        blind="a subject that does not repeat itself",
    )
)
