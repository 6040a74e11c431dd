"""DataLoader worker processes: the data sent to and from them, and what happens when they die."""
