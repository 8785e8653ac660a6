"""From a client's messages to token ids, item positions and resized pixels; no torch in here."""
