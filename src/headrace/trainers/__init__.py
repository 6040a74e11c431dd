"""Put headrace's streams into trainers that have loops of their own."""
