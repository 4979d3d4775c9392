"""One request inside the engine, and the plan and the result of a step."""
