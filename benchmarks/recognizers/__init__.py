"""Parts of `recognizer_bench`: the clips and how they sound, noises without a word, the wait."""
