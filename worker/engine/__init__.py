"""The engine process: schedules runs, keeps their keys and values, runs the model, picks tokens."""
