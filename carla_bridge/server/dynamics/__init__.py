"""How one body moves, without knowing of actors: vehicle models, tyres, ground under them, boxes that touch."""
