"""How the embedded models are made: data, tokenizer, training and evaluation of the agent."""
