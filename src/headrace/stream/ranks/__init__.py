"""What ranks tell each other: who they are, what they read, and what stopped them."""
