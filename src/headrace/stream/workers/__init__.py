"""DataLoader worker processes: what travels to and from them, and what happens when they die."""
