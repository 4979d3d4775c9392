"""Makes the audio of a request into the spectrogram that the model hears."""
