"""The tasks of the model, one file each: typed request -> user text, answer text <-> result. Published prompts."""
